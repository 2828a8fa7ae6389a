"""Uploads that take far longer than any time-out, over a line that is slow but never silent."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from teacher import connections, storage
from teacher.errors import SiteUnreachableError, StorageError
from teacher.labeling import client as client_module
from teacher.labeling.client import FeedbackClient, Point
from teacher.storage import open_storage

SECONDS = 0.4  # instead of all time-outs
RATE = 300_000  # bytes per second


class SlowServer:
    """Reads requests slowly, or not at all, and accepts each with the same JSON."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.taken = 0
        self.stalls = False
        self._answer = json.dumps(answer).encode() if answer else b""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(100)
            head, _, body = received.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            if b"100-continue" in head:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            taken = len(body)
            while taken < length and not self.stalls:
                taken += len(connection.recv(4096))
                time.sleep(4096 / RATE)
            if self.stalls:
                time.sleep(20 * SECONDS)
                return
            self.taken += taken
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(self._answer)
            connection.sendall(head + self._answer)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SlowServer]]:
    for module in (client_module, storage):
        for name in ("CONNECT_SECONDS", "READ_SECONDS"):
            monkeypatch.setattr(module, name, SECONDS)
    started: list[SlowServer] = []

    def serve(**answer: Any) -> SlowServer:
        started.append(SlowServer(answer))
        return started[-1]

    yield serve
    for server in started:
        server.close()


def test_large_report_arrives_on_a_slow_line(serve: Callable[..., SlowServer]) -> None:
    server = serve(stored=1)
    client = FeedbackClient(server.url, "token")
    points = [Point(step, {f"metric/{name}": 0.123456789 for name in range(40)}) for step in range(300)]
    assert client.post_points("cart-pole", points, None) == 1
    assert server.taken > 1.5 * SECONDS * RATE
    server.stalls = True
    with pytest.raises(SiteUnreachableError, match=r"timed out|timeout"):
        client.post_points("cart-pole", points, None)
    client.close()


def test_a_clip_larger_than_a_slow_line_takes_in_a_time_out_is_stored(
    serve: Callable[..., SlowServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = serve()
    monkeypatch.setenv("S3_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "abc")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "defghij")
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(bytes(400_000))
    store = open_storage("s3://clips")
    store.put("cart-pole/1/first.mp4", clip)
    assert server.taken == 400_000
    server.stalls = True
    with pytest.raises(StorageError):
        store.put("cart-pole/1/second.mp4", clip)


def test_the_kernel_takes_little_at_once() -> None:
    with socket.socket() as sock:
        sock.setsockopt(*connections.SEND_BUFFER)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2**16

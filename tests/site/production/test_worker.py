"""The worker: slow clients hold no thread and are ended, and HTTP is spoken as by gunicorn's own workers."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from gunicorn.config import Config

from human_feedback_site import worker
from human_feedback_site.worker import BufferedWorker

LONG = b"x" * 12_000_000  # more than the kernel buffers
GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
SLOW = {
    "header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
    "body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{",
    "chunks": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "reader": GET % (b"/long", b""),
    "file": GET % (b"/file", b""),
}


@dataclass
class Site:
    """A worker with two threads."""

    address: tuple[str, int]
    worker: BufferedWorker
    release: threading.Event
    """Lets requests of ``/wait`` end."""

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection with a small receive buffer."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(self.address)
        client.sendall(sent)
        return client

    def ask(self, sent: bytes) -> bytes:
        """Return all that the server sends until it closes the connection."""
        with self.connect(sent) as client:
            return b"".join(iter(lambda: client.recv(65536), b""))

    def answers(self) -> bool:
        """Return True if a request on a new connection is answered."""
        return self.ask(GET % (b"/", b"Connection: close\r\n")).endswith(b"\r\n\r\n/ -")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(worker, "TICK", 0.05)
    (tmp_path / "long").write_bytes(LONG)
    release = threading.Event()

    def application(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        path, body = environ["PATH_INFO"], environ["wsgi.input"].read()
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if path == "/file":
            start("200 OK", [("Content-Length", str(len(LONG)))])
            return environ["wsgi.file_wrapper"]((tmp_path / "long").open("rb"))  # type: ignore[no-any-return]
        if path == "/unchanged":
            start("304 Not Modified", [("ETag", '"1"')])
            return []
        if path == "/wait":
            release.wait(60)
        if length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            start("413 Content Too Large", [("Content-Length", "8")])
            return [b"refused\n"]
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "-")
        text = LONG if path == "/long" else f"{path} {body.decode()}{forwarded}".encode()
        start("200 OK", [("Content-Length", str(len(text)))])
        return [text]

    config = Config()
    for name, value in {"threads": 2, "worker_tmp_dir": str(tmp_path), "graceful_timeout": 5}.items():
        config.set(name, value)
    listener = socket.create_server(("127.0.0.1", 0))
    process = BufferedWorker(
        1, os.getppid(), [SimpleNamespace(sock=listener)], None, 30, config, logging.getLogger()
    )
    process.wsgi = application
    thread = threading.Thread(target=process.run)
    address = listener.getsockname()
    thread.start()
    yield Site(address, process, release)
    release.set()
    process.handle_exit(15, None)
    thread.join(30)
    assert not thread.is_alive()
    process.tmp.close()


@pytest.mark.parametrize("kind", SLOW)
def test_slow_clients_use_no_thread(site: Site, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(site.connect(SLOW[kind]))
        assert site.answers()


@pytest.mark.parametrize("kind", SLOW)
def test_too_slow_client_is_disconnected(site: Site, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.2)
    monkeypatch.setattr(worker, "LEAST_RATE", 10**9)
    with site.connect(SLOW[kind]) as client:
        if kind in {"reader", "file"}:
            assert client.recv(100)
            while site.worker._channels():
                time.sleep(0.05)
        else:
            assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
            assert client.recv(65536) == b""
    assert site.answers()


def test_slow_but_steady_client_is_served(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    monkeypatch.setattr(worker, "LEAST_RATE", 10)
    with site.connect(SLOW["body"]) as client:
        while not any(channel.state == "transfer" for channel in site.worker._channels()):
            time.sleep(0.01)
        client.sendall(b"x" * 400)
        while not any(channel.transferred >= 400 for channel in site.worker._channels()):
            time.sleep(0.01)
        ahead = worker.PATIENCE + 30
        time.sleep(0.2)  # four ticks
        client.sendall(b"x" * 499)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_keep_alive_and_pipelined_requests(site: Site) -> None:
    ahead = b"".join(GET % (path, b"") for path in (b"/a", b"/unchanged", b"/b"))
    answers = site.ask(ahead + GET % (b"/c", b"Connection: close\r\n"))
    parts = answers.split(b"HTTP/1.1 ")[1:]
    assert [part[:3] for part in parts] == [b"200", b"304", b"200", b"200"]
    assert [part.rpartition(b"\r\n")[2] for part in parts] == [b"/a -", b"", b"/b -", b"/c -"]
    assert answers.count(b"Connection: close") == 1


def test_head_and_chunked_bodies(site: Site) -> None:
    head = site.ask((GET % (b"/", b"Connection: close\r\n")).replace(b"GET", b"HEAD"))
    assert b"Content-Length: 3" in head
    assert head.endswith(b"\r\n\r\n")
    chunks = SLOW["chunks"].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + b"cde\r\n0\r\n\r\n"
    assert site.ask(chunks).endswith(b"\r\n\r\n/ abcde-")


@pytest.mark.parametrize("chunked", [False, True])
def test_client_reads_the_error_for_a_large_body(site: Site, chunked: bool) -> None:
    size = settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1
    length = b"Content-Length: 5\r\nTransfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    with site.connect(b"POST / HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n" % length) as client:
        client.sendall((b"%x\r\n" % size if chunked else b"") + b"x" * size)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nrefused\n")


def test_proxy_headers_are_passed_on(site: Site) -> None:
    forwarded = b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX_Forwarded_For: 9.9.9.9\r\n"
    assert site.ask(GET % (b"/", forwarded + b"Connection: close\r\n")).endswith(b"/ 1.2.3.4, 5.6.7.8")


def test_invalid_http_is_refused(site: Site) -> None:
    both = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"
    for sent in (b"nonsense\r\n\r\n", both, GET % (b"/", b"X: " + b"x" * 70_000 + b"\r\n")):
        assert site.ask(sent)[9:12] in {b"400", b"431"}


def test_stopping_worker_finishes_requests(site: Site) -> None:
    with site.connect(GET % (b"/wait", b"")) as client, site.connect(GET % (b"/", b"")) as idle:
        while not idle.recv(65536).endswith(b"/ -"):
            pass
        while not any(channel.requests for channel in site.worker._channels()):
            time.sleep(0.01)
        site.worker.handle_exit(15, None)
        while site.worker._servers():
            time.sleep(0.01)
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(site.address)
        idle.sendall(GET % (b"/late", b""))
        assert b"Connection: close" in idle.recv(65536)
        site.release.set()
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.endswith(b"/wait -")
        assert b"Connection: close" in answer

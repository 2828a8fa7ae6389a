"""HTTP servers of a few lines, each in a thread."""

import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import pytest
from kombu import Connection
from redis.exceptions import RedisError


class Handler(BaseHTTPRequestHandler):
    """Reads a request's body, sends an answer, and logs nothing."""

    server: Any

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, content: object = b"", headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send bytes, text, or anything else as JSON."""
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(server: HTTPServer | type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve in a thread; the value is the address."""
    if isinstance(server, type):
        server = ThreadingHTTPServer(("127.0.0.1", 0), server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def assert_silence_is_given_up(transport_options: Mapping[str, Any]) -> None:
    """Assert that a client of Redis with these options does not wait for ever."""
    options = {**transport_options, "socket_timeout": transport_options["socket_timeout"] / 100}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with (
            pytest.raises(RedisError, match="Timeout reading"),
            Connection(url, transport_options=options) as connection,
        ):
            connection.connect()

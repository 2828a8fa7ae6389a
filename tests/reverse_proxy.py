"""A reverse proxy of a few lines, with sites below paths of one host, as nginx and Caddy have them."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class ReverseProxy(ThreadingHTTPServer):
    """Sends a request for a path on to its site.

    Attributes:
        sites: address of a site by path, such as ``/teacher``.
        cuts: whether the path is taken off on the way.
        astray: what was asked for that is below none of the paths.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.sites: dict[str, str] = {}
        self.cuts = False
        self.astray: list[str] = []

    @property
    def url(self) -> str:
        """Return where the host's root is."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def reverse_proxy() -> Iterator[ReverseProxy]:
    """Run a proxy that has no sites yet."""
    with ReverseProxy() as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


class _Forward(BaseHTTPRequestHandler):
    server: ReverseProxy
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        below = [path for path in self.server.sites if self.path.startswith((f"{path}/", f"{path}?"))]
        if not below:
            self.server.astray.append(f"{self.command} {self.path}")
            self._answer(404, [], b"There is nothing here.")
            return
        target = self.path.removeprefix(below[0]) if self.server.cuts else self.path
        address = urlsplit(self.server.sites[below[0]]).netloc
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as site:
            site.request(self.command, target, body or None, dict(self.headers.items()))
            answer = site.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who asked is gone
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = _forward  # noqa: N815 (as the base class has it)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

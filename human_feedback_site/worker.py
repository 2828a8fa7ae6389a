"""Gunicorn worker that never waits for a client: waitress's event loop receives requests and sends responses.

Gunicorn's own threads read from and write to sockets, so a few slow clients would hold all of them. Here, a
thread gets a request once all of it has arrived, and is free once the response is in waitress's buffers.
Gunicorn's master process still handles listening sockets, signals and restarts.
"""

import contextlib
import math
import os
import resource
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.conf import settings
from gunicorn.workers.base import Worker
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, create_server
from waitress.task import WSGITask
from waitress.utilities import RequestEntityTooLarge

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# A client that sends a request or reads a response may take PATIENCE seconds, and one more second for each
# LEAST_RATE bytes that it has sent or read.
PATIENCE = 20.0
LEAST_RATE = 250
LINGER = 2.0  # seconds in which a client may still be sending on a connection that is about to close
TICK = 1.0  # seconds between two checks of all connections
PAUSE = 0.002  # seconds for which a worker that has accepted a connection leaves others to the other workers
_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """Passes requests whose body is too large on without the body, so that the site itself refuses them."""

    error: Any = None
    too_large = False

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        if isinstance(self.error, RequestEntityTooLarge):
            self.too_large, self.error, self.expect_continue = True, None, False
            self.headers["CONNECTION"] = "close"
            if self.chunked:  # then a declared length means nothing
                self.headers["CONTENT_LENGTH"] = str(self.body_bytes_received)
        return consumed


class _Task(WSGITask):  # type: ignore[misc]
    """Keeps the connection after responses without a body, such as status 304, unless the server stops."""

    def build_response_header(self) -> bytes:
        if self.channel.adj.is_stopping:
            self.request.headers["CONNECTION"] = "close"
        header: bytes = super().build_response_header()
        return header

    def set_close_on_finish(self) -> None:
        asked = self.request.headers.get("CONNECTION", "").lower() == "close"
        if self.has_body or asked or self.version == "1.0":
            super().set_close_on_finish()


class _Channel(HTTPChannel):  # type: ignore[misc]
    """Connection that ends if it is idle for long or its client sends or reads too slowly."""

    will_close: bool
    parser_class = _Parser
    task_class = _Task
    state = ""  # "idle", "transfer" (waiting for the client), "handling" or "lingering"
    since = 0.0  # when the state was first seen
    transferred = 0  # bytes sent and received since then
    lingers = False  # whether the client may be sending when the connection closes

    def received(self, data: bytes) -> bool:
        self.transferred += len(data)
        if self.state == "lingering":
            return False
        kept: bool = super().received(data)
        self.lingers = any(request.error or request.too_large for request in self.requests)
        return kept

    def send(self, data: bytes, do_close: bool = True) -> int:
        sent: int = super().send(data, do_close)
        self.transferred += sent
        return sent

    def readable(self) -> bool:
        return self.state == "lingering" or bool(super().readable())

    def handle_close(self) -> None:
        # With unread data, closing at once would make the kernel discard the response.
        if self.lingers and self.will_close:
            self.lingers = self.will_close = False
            self.state, self.since = "lingering", time.monotonic()
            with contextlib.suppress(OSError):  # the client is gone
                self.socket.shutdown(socket.SHUT_WR)
        else:
            super().handle_close()

    def check(self, keepalive: float) -> None:
        """Close the connection if it has been in its state for too long."""
        now, state = time.monotonic(), self._state()
        if state != self.state or (state == "idle" and self.transferred):
            self.state, self.since, self.transferred = state, now, 0
        patience = PATIENCE + self.transferred / LEAST_RATE
        limits = {"idle": keepalive, "transfer": patience, "handling": math.inf, "lingering": LINGER}
        if now > self.since + limits[state]:
            if self.request is not None and not self.requests:
                self.send(_TIMEOUT)
            super().handle_close()

    def _state(self) -> str:
        if self.state == "lingering":
            return self.state
        if self.total_outbufs_len or (self.request is not None and not self.requests):
            return "transfer"
        return "handling" if self.requests else "idle"


class BufferedWorker(Worker):  # type: ignore[misc]
    """Worker process with one waitress event loop and ``threads`` threads for the WSGI application."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._map: dict[int, Any] = {}  # waitress's servers, triggers and channels, by file descriptor
        self._checked = 0.0
        self._accepts_from = 0.0

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop accepting connections after SIGTERM."""
        super().handle_exit(sig, frame)
        for server in self._servers():
            server.pull_trigger()  # wakes the event loop

    def run(self) -> None:
        """Serve until SIGTERM, then finish the requests in progress."""
        most = self.cfg.worker_connections
        _allow_open_files(3 * most)  # a socket, a clip, and a buffer on disk each
        adjustments = create_server(
            _without_bodies_for_head(self.wsgi),
            map=self._map,
            sockets=[listener.sock for listener in self.sockets],
            threads=self.cfg.threads,
            connection_limit=most,
            max_request_header_size=2**16,
            max_request_body_size=settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1,  # waitress's limit is exclusive
            clear_untrusted_proxy_headers=False,  # the site reads them itself, if it trusts the proxy
            ident=None,
            log_socket_errors=False,
        ).adj
        adjustments.is_stopping = False
        self._listening = self._servers()
        for server in self._listening:
            server.channel_class = _Channel
        while self.alive and self.ppid == os.getppid():
            crowded = len(self._map) > 0.8 * most
            self._turn(LINGER if crowded else self.cfg.keepalive)

        adjustments.is_stopping = True
        while self._listening:
            server = self._listening.pop()
            server.socket.close()
            server.del_channel()  # but keep its trigger
        start = time.monotonic()
        for channel in self._channels():
            channel.since = start
        while self._channels() and time.monotonic() < start + self.cfg.graceful_timeout - 1:
            self._turn(LINGER)

    def _turn(self, keepalive: float) -> None:
        self.notify()
        accepts, count = time.monotonic() >= self._accepts_from, len(self._map)
        for server in self._listening:
            server.accepting = accepts
        wasyncore.loop(timeout=TICK if accepts else PAUSE, use_poll=True, map=self._map, count=1)
        now = time.monotonic()
        if len(self._map) > count:
            self._accepts_from = now + PAUSE
        if now > self._checked + TICK:
            self._checked = now
            for channel in self._channels():
                channel.check(keepalive)

    def _servers(self) -> list[Any]:
        return [each for each in self._map.values() if isinstance(each, BaseWSGIServer)]

    def _channels(self) -> list[_Channel]:
        return [each for each in self._map.values() if isinstance(each, _Channel)]


def _without_bodies_for_head(application: "WSGIApplication") -> "WSGIApplication":
    """Wrap a WSGI application so that responses to HEAD requests have no body, which waitress would send."""

    def bodiless(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        body = application(environ, start_response)
        if environ["REQUEST_METHOD"] != "HEAD":
            return body
        if hasattr(body, "close"):
            body.close()
        return []

    return bodiless


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

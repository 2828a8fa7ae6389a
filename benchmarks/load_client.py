"""HTTP load generator: simulated labelers that fetch a pair and save an answer as fast as they can.

It shares the CPU with the servers that it measures, so it uses a minimal HTTP client of its own: all labelers
run in one thread, at about 0.1 ms of CPU time per request.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

_TIMEOUT = 60.0  # seconds for a response
_EMPTY_SECONDS = 0.1  # pause of a labeler who got no pair
_LOOK_SECONDS = 0.5  # how often a waiting labeler checks whether to stop
_NO_FAILURE = (200, 404)  # Label Studio answers 404 if it has no task


@dataclass(frozen=True)
class Request:
    """HTTP request to send; ``body`` is JSON."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True)
class Offer:
    """Pair to judge: ``pair`` is its unique ID, and an answer refers to it by ``handle``."""

    pair: str
    handle: str


class Dialect(Protocol):
    """Protocol for a site's API: how to request a pair and save an answer."""

    @property
    def url(self) -> str:
        """Base URL of the site."""

    @property
    def keeps_connections(self) -> bool:
        """True if the server accepts several requests per connection."""

    def ask(self) -> Request:
        """Return the request for the next pair."""

    def offered(self, answer: Any) -> Offer | None:
        """Return the pair in a JSON response, or None if there is none."""

    def save(self, offer: Offer) -> Request:
        """Return the request that saves an answer to a pair."""


@dataclass
class Tally:
    """Measurements of all labelers.

    Attributes:
        next_s: response times, in seconds, of requests that returned a pair.
        save_s: response times, in seconds, of saved answers.
        saved: number of saved answers by labeler index.
        pairs: number of times each pair was served, by ID.
        empty: number of requests that returned no pair.
        failures: number of other failures, by kind.
        seconds: total duration.
        client_cpu_s: CPU seconds of this process.
    """

    next_s: list[float] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    saved: Counter[int] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def labels(self) -> int:
        """Number of saved answers."""
        return self.saved.total()


class _Connection:
    """HTTP connection of one labeler, opened on demand."""

    def __init__(self, dialect: Dialect, cookie: str) -> None:
        address = urlsplit(dialect.url)
        self._host, self._port = address.hostname, address.port
        self._keeps = dialect.keeps_connections
        cookies = dict(part.split("=", 1) for part in cookie.split("; "))
        self._head = (
            f"Host: {address.netloc}\r\nCookie: {cookie}\r\nX-CSRFToken: {cookies.get('csrftoken', '')}\r\n"
            "Content-Type: application/json\r\nAccept: application/json\r\n"
            f"Connection: {'keep-alive' if self._keeps else 'close'}\r\n"
        )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Request) -> tuple[int, bytes]:
        """Send a request and return the status and body of the response."""
        async with asyncio.timeout(_TIMEOUT):
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._streams
            head = f"{request.method} {request.path} HTTP/1.1\r\n{self._head}"
            length = f"Content-Length: {len(request.body)}\r\n\r\n"
            writer.write(head.encode() + length.encode() + request.body)
            said = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = int(said.split(" ", 2)[1])
            _, known, rest = said.partition("\r\ncontent-length:")
            body = await (reader.readexactly(int(rest.split("\r\n", 1)[0])) if known else reader.read())
        if not self._keeps or "\r\nconnection: close" in said:
            self.close()
        return status, body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def label(
    dialect: Dialect,
    cookies: Sequence[str],
    seconds: float,
    enough: Callable[[Tally], bool] = lambda tally: False,
    pace: float = 0.0,
) -> Tally:
    """Run one labeler per cookie for ``seconds``, or until ``enough`` returns True, and return the tally.

    With ``pace``, each labeler requests a pair at most every ``pace`` seconds. Their starts are staggered, so
    that the requests are spread evenly over that time.
    """
    tally = Tally()
    began, cpu = time.monotonic(), time.process_time()

    async def everybody() -> None:
        async with asyncio.TaskGroup() as group:
            for place, cookie in enumerate(cookies):
                labeler = _Labeler(dialect, cookie, place, tally, pace)
                begin = began + pace * place / len(cookies)
                group.create_task(labeler.work(begin, began + seconds, enough))

    asyncio.run(everybody())
    tally.seconds, tally.client_cpu_s = time.monotonic() - began, time.process_time() - cpu
    return tally


@dataclass
class _Labeler:
    """One labeler, which records its measurements in the shared tally."""

    dialect: Dialect
    cookie: str
    place: int
    tally: Tally
    pace: float

    async def work(self, due: float, until: float, enough: Callable[[Tally], bool]) -> None:
        """Label from time ``due`` to ``until``, or until ``enough`` returns True."""
        connection = _Connection(self.dialect, self.cookie)
        try:
            while time.monotonic() < until and not enough(self.tally):
                if time.monotonic() < due:
                    await asyncio.sleep(min(due - time.monotonic(), _LOOK_SECONDS))
                    continue
                due = max(due + self.pace, time.monotonic())
                try:
                    if not await self._label_one(connection):
                        await asyncio.sleep(_EMPTY_SECONDS)
                except (OSError, EOFError, ValueError) as error:
                    self.tally.failures[type(error).__name__] += 1
                    connection.close()
        finally:
            connection.close()

    async def _label_one(self, connection: _Connection) -> bool:
        """Fetch a pair and answer it; return False if there was none or a request failed."""
        tally = self.tally
        began = time.perf_counter()
        status, body = await connection.send(self.dialect.ask())
        took = time.perf_counter() - began
        if status not in _NO_FAILURE:
            tally.failures[f"next {status}"] += 1
            return False
        offer = self.dialect.offered(json.loads(body))
        if offer is None:
            tally.empty += 1
            return False
        tally.next_s.append(took)
        tally.pairs[offer.pair] += 1
        began = time.perf_counter()
        status, _ = await connection.send(self.dialect.save(offer))
        if status not in {200, 201}:
            tally.failures[f"save {status}"] += 1
            return False
        tally.save_s.append(time.perf_counter() - began)
        tally.saved[self.place] += 1
        return True


def step_by_step(dialect: Dialect, cookie: str, times: int) -> Iterator[str]:
    """Have one labeler label ``times`` pairs; yield ``next`` or ``save`` after each request."""
    with asyncio.Runner() as runner:
        connection = _Connection(dialect, cookie)
        for _ in range(times):
            status, body = runner.run(connection.send(dialect.ask()))
            offer = dialect.offered(json.loads(body)) if status == 200 else None
            assert offer is not None, (status, body)
            yield "next"
            status, body = runner.run(connection.send(dialect.save(offer)))
            assert status in {200, 201}, (status, body)
            yield "save"
        connection.close()

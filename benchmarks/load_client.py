"""Labelers that do not think: each fetches the next pair and saves an answer, over HTTP, as fast as it may.

The client is one of our own because it shares the processors with what it measures: it writes requests that
are put together beforehand, reads answers only as far as they are wanted, and does both for all labelers in
one thread, at about a tenth of a millisecond for each request.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

_PATIENCE = 60.0  # seconds for an answer
_EMPTY_SECONDS = 0.1  # until somebody who was given nothing asks again
_LOOK_SECONDS = 0.5  # until somebody whose turn has not come sees whether it is all over
_NO_FAILURE = (200, 404)  # the latter says, in Label Studio, that there is no task


@dataclass(frozen=True)
class Request:
    """What is sent; ``body`` is JSON."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True)
class Offer:
    """A pair to judge: ``pair`` tells it from others, ``handle`` is what an answer names."""

    pair: str
    handle: str


class Dialect(Protocol):
    """How a site is asked for the next pair and told an answer."""

    @property
    def url(self) -> str:
        """Of the site."""

    @property
    def keeps_connections(self) -> bool:
        """Whether its server takes more than one request from a connection."""

    def ask(self) -> Request:
        """The request for the next pair."""

    def offered(self, answer: Any) -> Offer | None:
        """The pair that was given; None where there was none."""

    def save(self, offer: Offer) -> Request:
        """The request that answers it."""


@dataclass
class Tally:
    """What labelers met with.

    Attributes:
        next_s: seconds of each request for a pair that got one.
        save_s: seconds of each answer until it was acknowledged.
        saved: acknowledged answers of each labeler, by its place.
        pairs: how often each pair was given.
        empty: requests that got no pair.
        failures: what went wrong otherwise, and how often.
        seconds: from the first request to the last answer.
        client_cpu_s: processor seconds of this process meanwhile.
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
        """Acknowledged answers."""
        return self.saved.total()


class _Connection:
    """One labeler's connection."""

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
        """Send a request and return status and body of its answer."""
        async with asyncio.timeout(_PATIENCE):
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
    """Have one labeler for each of ``cookies`` label for so long, or until ``enough`` says so.

    With ``pace``, a labeler asks for a pair that many seconds after the last, if it is through with it; they
    begin one after the other, so that their requests are spread over that time.
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
    """One labeler, who notes everything in the common tally."""

    dialect: Dialect
    cookie: str
    place: int
    tally: Tally
    pace: float

    async def work(self, due: float, until: float, enough: Callable[[Tally], bool]) -> None:
        """Label from one time to another, or until it is enough."""
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
        """Fetch a pair and answer it; False where there was none."""
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
    """Have one labeler label ``times`` pairs; yields ``next`` and ``save`` after each."""
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

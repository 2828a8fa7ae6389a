"""PostgreSQL goes away or hangs: the site says so in time, asks to come again, and goes on afterwards."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import requests

from stack.postgres import PostgreSQL
from stack.process import Process, State
from tests.databases import TEMPLATE, database_of
from tests.site.conftest import RUN
from tests.site.production.conftest import Production
from tests.waiting import wait_until

CONNECT_SECONDS = 2
END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Postgres:
    """A server of this test's own, to be stopped and started."""

    def __init__(self, server: PostgreSQL, folder: Path) -> None:
        self._server = server
        self._process = Process(server.service(), folder)
        self.url = database_of(server.url, TEMPLATE)

    def start(self) -> None:
        self._process.start()
        while self._process.state is not State.READY:
            self._process.look()
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.stop()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let nobody in any more, without a word."""
        pid = self._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        self._process.stop()
        self._server.remove()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def postgres(folder: Path, new_postgres: Callable[[Path], PostgreSQL]) -> Iterator[Postgres]:
    """A server that runs, and must run after each test."""
    server = Postgres(new_postgres(folder), folder)
    try:
        server.start()
        yield server
    finally:
        server.remove()


class Visitor:
    """Asks a site on a PostgreSQL server, as a trainer does, or as a page's reader who is signed in."""

    def __init__(self, site: Production, token: str) -> None:
        self.site = site
        self.process = site.start(WEB_CONCURRENCY="1")
        self._url = site.url
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Cookie": f"sessionid={'x' * 32}",
            "X-Forwarded-Proto": "https",
        }

    def get(self, path: str) -> requests.Response:
        return requests.get(self._url + path, headers=self._headers, timeout=120, allow_redirects=False)

    def put(self, path: str, body: object) -> requests.Response:
        return requests.put(self._url + path, json=body, headers=self._headers, timeout=120)

    def statuses(self, *paths: str) -> list[int]:
        return [self.get(path).status_code for path in paths]

    def wait_until(self, status: int) -> None:
        """Wait until ``/readyz``, which reuses its last result for a moment, returns ``status``."""
        wait_until(lambda: self.statuses("/readyz") == [status], pause=0.1)


@pytest.fixture(scope="module")
def visitors(
    postgres: Postgres, production: Callable[[str, Path], Production], folder: Path
) -> Iterator[Callable[[], Visitor]]:
    """Return the visitor of the site that runs, which is started where none does."""
    site = production(f"{postgres.url}?connect_timeout={CONNECT_SECONDS}", folder)
    token, started = site.migrate(), list[Visitor]()

    def visitor() -> Visitor:
        if not started or started[-1].process.poll() is not None:
            started.append(Visitor(site, token))
        return started[-1]

    yield visitor
    site.stop()


@pytest.fixture
def visitor(visitors: Callable[[], Visitor]) -> Visitor:
    return visitors()


def test_requests_recover_when_the_database_returns(postgres: Postgres, visitor: Visitor) -> None:
    paths = ("/readyz", "/api/v1/experiments/x/decisions", "/", "/livez")
    assert visitor.statuses(*paths) == [200, 404, 302, 200]
    postgres.stop()
    visitor.wait_until(503)
    for path in paths[:2]:
        answer = visitor.get(path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert "database does not answer" in answer.json()["detail"]
        assert not re.search("teacher|127.0.0.1|password", answer.text)
    page = visitor.get("/")
    assert (page.status_code, page.headers["Retry-After"]) == (503, "5")
    assert "Something went wrong" in page.text
    assert page.headers["X-Request-ID"] in page.text
    assert visitor.statuses("/livez") == [200]
    postgres.start()
    visitor.wait_until(200)
    assert visitor.statuses(*paths) == [200, 404, 302, 200]


def test_request_in_progress_fails_temporarily(postgres: Postgres, visitor: Visitor) -> None:
    with ThreadPoolExecutor(1) as pool, closing(psycopg.connect(postgres.url)) as other:
        other.execute("LOCK TABLE feedback_apitoken")
        answer = pool.submit(visitor.get, "/api/v1/experiments/x/decisions")
        wait_until_waiting(other)
        postgres.stop()
        assert answer.result(timeout=240).status_code == 503
    postgres.start()
    assert visitor.statuses("/api/v1/experiments/x/decisions") == [404]


def test_hanging_database_does_not_block_probes(postgres: Postgres, visitor: Visitor) -> None:
    visitor.wait_until(200)
    with postgres.hanging():
        visitor.wait_until(503)  # a visitor would wait longer than the site does
        assert visitor.statuses("/livez") == [200]
    visitor.wait_until(200)


def test_read_only_database_is_reported_in_one_line(postgres: Postgres, visitor: Visitor) -> None:
    visitor.wait_until(200)
    experiment = {**RUN, "run_id": str(UUID(int=1))}
    with closing(psycopg.connect(postgres.url, autocommit=True)) as other:
        try:
            other.execute(f"ALTER DATABASE {TEMPLATE} SET default_transaction_read_only = on")
            other.execute(END_OTHERS)
            visitor.wait_until(503)
            assert "The database is read-only." in visitor.get("/readyz").json()["detail"]
            logged = len(visitor.site.text())
            for _ in range(2):
                answer = visitor.put("/api/v1/experiments/hopper", experiment)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
                assert answer.json()["detail"] == "The database is read-only. Try again soon."
            said = visitor.site.text()[logged:]
            assert "Traceback" not in said
            assert said.count("cannot execute") == 1
        finally:
            other.execute(f"ALTER DATABASE {TEMPLATE} RESET default_transaction_read_only")
    visitor.wait_until(200)
    # Each connection that a thread kept is dropped with the first write that fails.
    statuses = [visitor.put("/api/v1/experiments/hopper", experiment).status_code for _ in range(16)]
    assert set(statuses[8:]) <= {200, 201}, statuses  # there are eight threads


def test_sigterm_finishes_a_request_and_closes_connections(postgres: Postgres, visitor: Visitor) -> None:
    visitor.statuses("/api/v1/experiments/x/decisions")
    with ThreadPoolExecutor(1) as pool, closing(psycopg.connect(postgres.url)) as other:
        other.execute("LOCK TABLE feedback_apitoken")
        answer = pool.submit(visitor.get, "/api/v1/experiments/x/decisions")
        wait_until_waiting(other)
        visitor.process.terminate()
        visitor.site.until("Handling signal: term")
        assert not answer.done()
        other.rollback()
        assert answer.result(timeout=240).status_code == 404
        assert visitor.process.wait(60) == 0
        assert connections_beside(other) == []


def wait_until_waiting(other: psycopg.Connection[Any]) -> None:
    wait_until(lambda: ("Lock",) in connections_beside(other), lambda: "no request waits for the lock")


def connections_beside(other: psycopg.Connection[Any]) -> list[tuple[str | None]]:
    """Return what each connection but ``other`` waits for, now: a transaction would remember."""
    other.execute("SELECT pg_stat_clear_snapshot()")
    return other.execute(
        "SELECT wait_event_type FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ).fetchall()

"""Production's server says when it is ready, keeps one log, goes to https, and stops without haste."""

import contextlib
import re
import shutil
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests

from tests.site.production.conftest import Production

EXPERIMENT = {
    "run_id": "0b5e1d0e-5c3c-4b8c-9d5e-0d7f8a3c2b11",
    "env_id": "x",
    "prompt": "x",
    "fps": 20,
    "has_true_reward": False,
}


@pytest.fixture(scope="module")
def running(
    production: Callable[[str, Path], Production],
    migrated_database: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Production]:
    """A site that runs, and must run after each test."""
    folder = tmp_path_factory.mktemp("site")
    site = production(f"sqlite:///{shutil.copy(migrated_database, folder / 'site.sqlite3')}", folder)
    site.start(WEB_CONCURRENCY="1")
    yield site
    site.stop()


def test_log_is_json_with_one_line_per_request(running: Production) -> None:
    url = running.url
    assert requests.get(f"{url}/readyz", timeout=60).json() == {"status": "ready", "instance": ""}
    assert requests.head(f"{url}/readyz", timeout=60).status_code == 200
    requests.get(f"{url}/api/v1/experiments/x", headers={"X-Request-ID": "from-the-proxy"}, timeout=60)
    lines = running.log()
    assert {line["logger"] for line in lines} == {"gunicorn.error", "human_feedback_site.access"}
    assert [line["request_id"] for line in lines].count("from-the-proxy") == 1
    assert not re.search("livez|readyz", running.text())


def test_https_redirect_spares_probes_and_trainers(running: Production) -> None:
    url = running.url
    behind_the_proxy = {"Host": "teach.example.org", "X-Forwarded-Proto": "https"}

    def get(path: str, **headers: str) -> requests.Response:
        return requests.get(url + path, headers=headers, allow_redirects=False, timeout=60)

    for headers in ({}, {"Host": "teach.example.org"}, {**behind_the_proxy, "X-Forwarded-Proto": "http"}):
        answer = get("/accounts/login/?next=/", **headers)
        assert answer.status_code == 301
        assert answer.headers["Location"] == "https://teach.example.org/accounts/login/?next=/"
        assert [get(path, **headers).status_code for path in ("/livez", "/readyz")] == [200, 200]
        assert get("/api/v1/experiments/x", **headers).status_code == 401
    page = get("/accounts/login/", **behind_the_proxy)
    assert page.status_code == 200
    assert page.headers["Strict-Transport-Security"] == "max-age=2592000"
    assert "; Secure" in page.headers["Set-Cookie"]


def test_slow_clients_hold_no_thread(running: Production) -> None:
    host, _, port = running.url.removeprefix("http://").partition(":")
    headers = b"POST /api/v1/labels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        for begun in (headers, headers + b"Content-Length: 900\r\n\r\n{"):
            for _ in range(10):  # more than a worker has threads
                client = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                client.sendall(begun)
        assert requests.get(f"{running.url}/livez", timeout=60).status_code == 200


def test_sigterm_finishes_requests_and_leaves_nothing(site: Production, tmp_path: Path) -> None:
    token = site.migrate()
    process = site.start(WEB_CONCURRENCY="2")
    url = site.url

    def put() -> int:
        headers = {"Authorization": f"Bearer {token}"}
        address = f"{url}/api/v1/experiments/hopper"
        return requests.put(address, json=EXPERIMENT, headers=headers, timeout=60).status_code

    other = sqlite3.connect(tmp_path / "site.sqlite3", isolation_level=None)
    with ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN IMMEDIATE")
        answer = pool.submit(put)
        while not has_open(process.pid, "site.sqlite3"):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        site.until("Worker exiting")  # of the other, which has nothing to do
        assert not answer.done()
        assert process.poll() is None
        other.execute("ROLLBACK")
        assert answer.result(timeout=60) == 201
    other.close()
    assert process.wait(120) == 0
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/livez", timeout=5)
    said = [line["message"] for line in site.log()]
    assert sum(line.startswith("Worker exiting") for line in said) == 2
    assert not any("SIGKILL" in line or "timeout" in line.lower() for line in said)


def has_open(server: int, name: str) -> bool:
    """Return whether a worker of the server uses a file of that name."""
    used = [file.path for worker in psutil.Process(server).children() for file in worker.open_files()]
    return any(path.endswith(f"/{name}") for path in used)


def test_invalid_settings_stop_the_server_with_one_line(new_site: Production) -> None:
    for variables, message in (
        ({"LOG_FORMAT": "xml"}, "LOG_FORMAT must be json or plain, not 'xml'."),
        ({"SECRET_KEY": ""}, "SECRET_KEY must be set if DATABASE_URL is set"),
        ({"WEB_CONCURRENCY": "abc"}, "WEB_CONCURRENCY must be a whole number from 1 to 9999, not 'abc'; "),
        ({"MEDIA_KEEP_DAYS": "abc"}, "MEDIA_KEEP_DAYS must be a whole number from 0 to 9999, not 'abc'; "),
        (
            {"OIDC_CLIENT_ID": "x"},
            "Single sign-on needs OIDC_ISSUER, OIDC_CLIENT_ID and OIDC_CLIENT_SECRET; ",
        ),
    ):
        process = new_site.start(**variables)
        assert process.wait(120) != 0
        [line] = new_site.text().strip().splitlines()
        assert line.startswith(f"Error: {message}")

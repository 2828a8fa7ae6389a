"""Production: gunicorn and its worker, one log, one set of metrics, slow clients, and a clean check."""

import contextlib
import io
import logging
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import override_settings
from gunicorn.config import Config

from human_feedback_site import worker
from human_feedback_site.feedback.models import Experiment, SequenceCounter
from human_feedback_site.feedback.services import accounts, parts
from human_feedback_site.feedback.system_checks import sign_in_obstacle
from human_feedback_site.worker import BufferedWorker
from tests.databases import Using
from tests.site.conftest import RUN, settings_of
from tests.site.production.conftest import Production


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
    said = {"status": "ready", "instance": "", "kinds": ["pair", "graded", "rating", "best_worst"]}
    assert requests.get(f"{url}/readyz", timeout=60).json() == said
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
        return requests.put(
            address, json={**RUN, "run_id": str(UUID(int=1))}, headers=headers, timeout=60
        ).status_code

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


def check(site: Production, address: str, **variables: str) -> str:
    """Check in this process, with the settings of a site that is reached at an address."""
    values = settings_of(**site.environment | {"TEACHER_PUBLIC_URL": address} | variables)
    del values["DATABASES"]  # Django would not notice that they change
    out = io.StringIO()
    with override_settings(**values):
        call_command("check", deploy=True, fail_level="WARNING", stdout=out, stderr=out)
    return out.getvalue()


def test_https_address_gives_no_warnings(site: Production) -> None:
    assert check(site, "https://localhost:8443") == "System check identified no issues (2 silenced).\n"
    done = site.run("-W", "error", "manage.py", "check", "--deploy", "--fail-level", "WARNING")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "System check identified no issues (2 silenced).\n"


def test_hsts_warning_is_silenced_below_a_path(site: Production) -> None:
    assert check(site, "https://localhost/teacher") == "System check identified no issues (1 silenced).\n"


def test_http_address_gives_warnings(site: Production) -> None:
    with pytest.raises(CommandError) as caught:
        check(site, "http://192.168.1.5:8000")
    no_hsts_no_redirect_no_secure_cookies = ["W004", "W008", "W012", "W016"]
    assert re.findall(r"security\.(\w+)", str(caught.value)) == no_hsts_no_redirect_no_secure_cookies


def obstacle(host: str) -> str:
    return (
        f"ALLOWED_HOSTS allows {host}, but no one can sign in or use an invitation over http. "
        "Set TEACHER_PUBLIC_URL to the URL that people open in their browsers, "
        "such as http://lab.local:8000 or https://lab.local."
    )


@pytest.mark.parametrize(
    ("hosts", "shown"), [("lab.local", "lab.local"), ("127.0.0.1,.lab.local,x", ".lab.local"), ("*", "*")]
)
def test_hosts_without_an_address_are_warned_about(site: Production, hosts: str, shown: str) -> None:
    with pytest.raises(CommandError) as caught:
        check(site, "", ALLOWED_HOSTS=hosts)
    [line] = [line for line in str(caught.value).splitlines() if "feedback.W001" in line]
    assert line == f"?: (feedback.W001) {obstacle(shown)}"


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("", {}),  # for this machine alone
        ("http://lab.local:8000", {"ALLOWED_HOSTS": "lab.local"}),
        ("https://lab.local", {"ALLOWED_HOSTS": "lab.local"}),
        ("", {"ALLOWED_HOSTS": "lab.local", "CSRF_TRUSTED_ORIGINS": "https://lab.local"}),
    ],
)
def test_no_warning_where_sign_in_works(site: Production, address: str, variables: dict[str, str]) -> None:
    values = settings_of(**site.environment | {"TEACHER_PUBLIC_URL": address} | variables)
    del values["DATABASES"]
    with override_settings(**values):
        assert sign_in_obstacle() is None


def test_production_warns_once_at_start(site: Production) -> None:
    site.start(TEACHER_PUBLIC_URL="", ALLOWED_HOSTS="lab.local", WEB_CONCURRENCY="2")
    assert site.url
    [line] = [line for line in site.log() if line["level"] == "WARNING"]
    assert line["message"] == obstacle("lab.local")


TOKEN = "only-for-tests-" + "0123456789" * 3


def label(site: Production, using: Using) -> None:
    """Let somebody have given three labels, and withdrawn one."""
    with using(site.environment["DATABASE_URL"]):
        owner = User.objects.create(username="ada", is_staff=True)
        experiment = Experiment.objects.create(
            name="hopper", owner=owner, run_id=uuid4(), fps=20, has_true_reward=False
        )
        SequenceCounter.objects.create(experiment=experiment, last_seq=4)
        labeler = accounts.invite(experiment, "bob")
        parts.add(accounts.participation_of(labeler, experiment).pk, None, answers=3, undone=1)


def scrape(url: str) -> dict[str, str]:
    """Read the counters over a connection of its own, as plain HTTP although people come by https."""
    answer = requests.get(
        f"{url}/metrics",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=60,
        allow_redirects=False,
    )
    assert answer.status_code == 200
    return dict(re.findall(r'^rl_teacher_(\w+_total){experiment="hopper"} (.+)$', answer.text, re.MULTILINE))


def test_all_processes_report_the_same_counts(site: Production, using: Using) -> None:
    """A count that a process keeps for itself would begin at 0 in each."""
    label(site, using)
    site.start(WEB_CONCURRENCY="2", TEACHER_METRICS_TOKEN=TOKEN)
    url = site.url
    expected = {"labels_total": "3.0", "withdrawn_labels_total": "1.0", "decisions_total": "4.0"}
    assert [scrape(url) for _ in range(8)] == [expected] * 8
    assert requests.get(f"{url}/metrics", timeout=60, allow_redirects=False).status_code == 404
    assert TOKEN not in site.text()


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
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
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
def test_slow_clients_use_no_thread(served: Site, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(served.connect(SLOW[kind]))
        assert served.answers()


@pytest.mark.parametrize("kind", SLOW)
def test_too_slow_client_is_disconnected(served: Site, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.2)
    monkeypatch.setattr(worker, "LEAST_RATE", 10**9)
    with served.connect(SLOW[kind]) as client:
        if kind in {"reader", "file"}:
            assert client.recv(100)
            while served.worker._channels():
                time.sleep(0.05)
        else:
            assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
            assert client.recv(65536) == b""
    assert served.answers()


def test_slow_but_steady_client_is_served(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    monkeypatch.setattr(worker, "LEAST_RATE", 10)
    with served.connect(SLOW["body"]) as client:
        while not any(channel.state == "transfer" for channel in served.worker._channels()):
            time.sleep(0.01)
        client.sendall(b"x" * 400)
        while not any(channel.transferred >= 400 for channel in served.worker._channels()):
            time.sleep(0.01)
        ahead = worker.PATIENCE + 30
        time.sleep(0.2)  # four ticks
        client.sendall(b"x" * 499)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_worker_leaves_the_next_connection_to_others(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    monkeypatch.setattr(worker, "PAUSE", 60.0)
    with (
        served.connect(GET % (b"/", b"")) as first,
        served.connect(GET % (b"/second", b"Connection: close\r\n")) as second,
    ):
        for _ in range(2):
            while not first.recv(65536).endswith(b"/ -"):
                pass
            first.sendall(GET % (b"/", b""))
        assert len(served.worker._channels()) == 1
        ahead = 60.0
        first.sendall(GET % (b"/", b""))
        assert b"".join(iter(lambda: second.recv(65536), b"")).endswith(b"/second -")


def test_keep_alive_and_pipelined_requests(served: Site) -> None:
    ahead = b"".join(GET % (path, b"") for path in (b"/a", b"/unchanged", b"/b"))
    answers = served.ask(ahead + GET % (b"/c", b"Connection: close\r\n"))
    parts = answers.split(b"HTTP/1.1 ")[1:]
    assert [part[:3] for part in parts] == [b"200", b"304", b"200", b"200"]
    assert [part.rpartition(b"\r\n")[2] for part in parts] == [b"/a -", b"", b"/b -", b"/c -"]
    assert answers.count(b"Connection: close") == 1


def test_head_and_chunked_bodies(served: Site) -> None:
    head = served.ask((GET % (b"/", b"Connection: close\r\n")).replace(b"GET", b"HEAD"))
    assert b"Content-Length: 3" in head
    assert head.endswith(b"\r\n\r\n")
    chunks = SLOW["chunks"].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + b"cde\r\n0\r\n\r\n"
    assert served.ask(chunks).endswith(b"\r\n\r\n/ abcde-")


@pytest.mark.parametrize("chunked", [False, True])
def test_client_reads_the_error_for_a_large_body(served: Site, chunked: bool) -> None:
    size = settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1
    length = b"Content-Length: 5\r\nTransfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    with served.connect(b"POST / HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n" % length) as client:
        client.sendall((b"%x\r\n" % size if chunked else b"") + b"x" * size)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nrefused\n")


def test_proxy_headers_are_passed_on(served: Site) -> None:
    forwarded = b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX_Forwarded_For: 9.9.9.9\r\n"
    assert served.ask(GET % (b"/", forwarded + b"Connection: close\r\n")).endswith(b"/ 1.2.3.4, 5.6.7.8")


def test_invalid_http_is_refused(served: Site) -> None:
    both = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"
    for sent in (b"nonsense\r\n\r\n", both, GET % (b"/", b"X: " + b"x" * 70_000 + b"\r\n")):
        assert served.ask(sent)[9:12] in {b"400", b"431"}


def test_stopping_worker_finishes_requests(served: Site) -> None:
    with served.connect(GET % (b"/wait", b"")) as client, served.connect(GET % (b"/", b"")) as idle:
        while not idle.recv(65536).endswith(b"/ -"):
            pass
        while not any(channel.requests for channel in served.worker._channels()):
            time.sleep(0.01)
        served.worker.handle_exit(15, None)
        while served.worker._servers():
            time.sleep(0.01)
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(served.address)
        idle.sendall(GET % (b"/late", b""))
        assert b"Connection: close" in idle.recv(65536)
        served.release.set()
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.endswith(b"/wait -")
        assert b"Connection: close" in answer

"""The embedded site is private, honours exported variables, and outlives damage and setting up at once."""

import fcntl
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection
from pytest_django import Settings
from standardwebhooks import Webhook

from human_feedback_site.embedded import EmbeddedSite, _last_announcement, _last_port, _sign_in_code
from human_feedback_site.private import read_secret_key
from tests.conftest import damaged, refusals
from tests.servers import serving
from tests.site.conftest import settings_of
from tests.site.webhooks.conftest import Receiver
from tests.waiting import completed, wait_until

Start = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start the site of a state folder and return what it announces; it ends with the last test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(state: Path, hurry: str = "pass", **variables: str) -> dict[str, Any]:
        alone = "embedded.GRACE_SECONDS = 600.0"  # no run has joined it, and it is not to end meanwhile
        program = f"from human_feedback_site import embedded; {alone}; {hurry}; exit(embedded.main())"
        command = [sys.executable, "-c", program, "--bind", "127.0.0.1", "--state-dir", str(state)]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
        path = log_of(state)
        with path.open("wb") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            try:
                announced: dict[str, Any] = json.loads((state / "site/lock").read_text())
                announced["url"]  # at first there is only the machine's name
            except (FileNotFoundError, KeyError, ValueError):
                if started[-1].poll() is not None:
                    break
                time.sleep(0.05)
            else:
                return announced
        raise AssertionError(path.read_text())

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(120)


def log_of(state: Path) -> Path:
    """Return where a site says what it does, beside its state folder."""
    return state.with_name(f"{state.name}.log")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fresh_state_folder_is_private_and_unreachable_hosts_are_warned_about(
    start: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (state / "site/runs").mkdir(parents=True)  # as a run makes it for its lock
    start(state, ALLOWED_HOSTS="lab.local")
    [said] = [line for line in log_of(state).read_text().splitlines() if "WARNING" in line]
    assert "no one can sign in or use an invitation over http" in said
    assert "Set TEACHER_PUBLIC_URL" in said
    assert mode(state) == 0o700
    assert mode(state / "site.sqlite3") == 0o600


# A site that was told much, and whose minutes are short


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """A state folder that was there before, open to others, with a database and a long log."""
    state = tmp_path_factory.mktemp("told") / "state"
    state.mkdir()
    state.chmod(0o755)
    (state / "site.log").write_text("a long story\n" * 100)
    shutil.copy(migrated_database, state / "site.sqlite3")
    return state


@pytest.fixture(scope="module")
def site(start: Start, state: Path, taken: int) -> Iterator[dict[str, Any]]:
    """Return what the site announces; a run has joined it."""
    runs = state / "site/runs"
    runs.mkdir(parents=True)
    with (runs / "run.lock").open("w") as run:
        fcntl.flock(run, fcntl.LOCK_EX)
        yield start(
            state,
            hurry="embedded.MINUTE = 0.05; embedded.LOG_BYTES = 1000",
            TEACHER_PUBLIC_URL="http://labels.example:8080",
            ALLOWED_HOSTS="lab.example",
            TEACHER_PORT=str(min(taken, 65000)),
            WEB_CONCURRENCY="abc",
            TEACHER_STORAGE=str(state.with_name("clips")),
            WEBHOOK_ALLOWED_HOSTS="127.0.0.1",
        )


def test_an_exported_public_address_is_served_and_used_in_links(site: dict[str, Any], state: Path) -> None:
    for host in ("labels.example", "lab.example", "127.0.0.1"):
        assert requests.get(f"{site['url']}/livez", headers={"Host": host}, timeout=60).status_code == 200
    assert requests.get(f"{site['url']}/livez", headers={"Host": "evil"}, timeout=60).status_code == 400
    put = put_experiment(site, state)
    assert put.json()["invite_url"].startswith("http://labels.example:8080/j/")


def test_existing_folder_keeps_its_mode(site: dict[str, Any], state: Path) -> None:
    assert mode(state) == 0o755
    assert {mode(state / name) for name in ("token", "secret_key", "site/lock")} == {0o600}


def test_slow_clients_hold_no_thread(site: dict[str, Any]) -> None:
    with ExitStack() as stack:
        for _ in range(10):  # more than it has threads
            client = stack.enter_context(socket.create_connection(("127.0.0.1", site["port"]), timeout=60))
            client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert requests.get(f"{site['url']}/livez", timeout=60).status_code == 200


def test_the_port_can_be_chosen(site: dict[str, Any], taken: int) -> None:
    first = min(taken, 65000)
    assert first <= site["port"] < first + 100
    assert site["port"] != taken


def test_commands_look_for_clips_where_the_site_does(site: dict[str, Any], state: Path) -> None:
    """They are given the state folder alone."""
    told = settings_of(TEACHER_STATE_DIR=str(state))
    assert told["TEACHER_STORAGE"] == site["storage"] == str(state.with_name("clips"))


def test_web_concurrency_is_ignored(site: dict[str, Any]) -> None:
    """WEB_CONCURRENCY was no number."""
    assert requests.get(f"{site['url']}/livez", timeout=60).status_code == 200


def test_chores_are_done_and_one_that_fails_does_not_end_the_site(site: dict[str, Any], state: Path) -> None:
    log = log_of(state)
    with closing(sqlite3.connect(state / "site.sqlite3", timeout=60)) as database:
        with database:
            database.execute("DROP TABLE django_session")
        message = "The maintenance task 'expired sessions' failed and will be retried later"
        wait_until(lambda: message in log.read_text())
        put_experiment(site, state)
        with database:
            database.execute(
                "UPDATE feedback_experiment SET waiting_for = 7, trainer_seen_at = '2020-01-01 00:00:00'"
            )
        waiting = "SELECT waiting_for FROM feedback_experiment"
        wait_until(lambda: database.execute(waiting).fetchone() == (None,))
    assert requests.get(f"{site['url']}/livez", timeout=60).status_code == 200


def test_webhooks_are_sent_although_there_is_no_worker(site: dict[str, Any], state: Path) -> None:
    receiver = Receiver()
    with serving(receiver), closing(sqlite3.connect(state / "site.sqlite3", timeout=60)) as database:
        with database:
            database.execute(
                "INSERT INTO feedback_webhookendpoint (id, name, url, format, training_waiting, enabled,"
                " experiment_finished, labeler_blocked, secret, created_at)"
                " VALUES (1, 'pager', ?, 'json', 0, 1, 1, 0, 'whsec_c2VjcmV0', '2026-01-01 00:00:00')",
                (receiver.url,),
            )
        put_experiment(site, state)  # which an earlier test may have done already
        assert put_experiment(site, state, state="finished").status_code == 200
        wait_until(lambda: bool(receiver.received))
        delivered = "SELECT status FROM feedback_webhookdelivery"
        wait_until(lambda: database.execute(delivered).fetchall() == [("delivered",)])
    [request] = receiver.received
    event = Webhook("whsec_c2VjcmV0").verify(request.body, request.headers)
    assert event["data"] == {"experiment": "hopper", "url": "http://labels.example:8080/experiments/hopper/"}


def test_long_log_is_rotated(site: dict[str, Any], state: Path) -> None:
    log, before = state / "site.log", state / "site.log.1"
    wait_until(lambda: before.exists() and log.stat().st_size == 0)
    assert before.read_text() == "a long story\n" * 100
    assert mode(before) == 0o600


def test_invalid_port_stops_the_site(start: Start, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="TEACHER_PORT must be a whole number from 1 to 65535"):
        start(tmp_path / "state", TEACHER_PORT="65536")


def test_variables_of_single_sign_on_that_are_incomplete_stop_the_site(start: Start, tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match="set OIDC_ISSUER and OIDC_CLIENT_SECRET, or unset OIDC_CLIENT_ID"
    ):
        start(tmp_path / "state", OIDC_CLIENT_ID="rl-teacher")


def put_experiment(site: dict[str, Any], state_dir: Path, **changes: str) -> requests.Response:
    token = (state_dir / "token").read_text().strip()
    body = {"run_id": "0b5e1d0e-5c3c-4b8c-9d5e-0d7f8a3c2b11", "env_id": "x", "prompt": "x", "fps": 20}
    return requests.put(
        f"{site['url']}/api/v1/experiments/hopper",
        json={**body, "has_true_reward": False, **changes},
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )


Damaged = Callable[[bytes], Iterator[bytes]]


def test_damaged_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    read_secret_key(tmp_path, embedded=True)

    def read() -> None:
        assert read_secret_key(tmp_path, embedded=True).isprintable()

    refused = refusals(tmp_path / "secret_key", read, ImproperlyConfigured)
    assert len(refused) > 20
    advice = "delete the file, and the site will create a new one"
    assert set(refused) == {f"{tmp_path}/secret_key contains no valid secret key; {advice}."}


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"", b"tt_" + b"x" * 43])
def test_a_damaged_token_is_replaced(db: None, settings: Settings, tmp_path: Path, content: bytes) -> None:
    settings.STATE_DIR = tmp_path
    (tmp_path / "token").write_bytes(content)
    call_command("setup_embedded", stdout=io.StringIO())
    assert (tmp_path / "token").read_text().startswith("tt_")
    assert (tmp_path / "token").read_bytes() != content


def test_a_damaged_announcement_of_the_site_before_has_no_port(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    for content in damaged(json.dumps({"port": 8000, "url": "http://127.0.0.1:8000"}).encode()):
        lock.write_bytes(content)
        port = _last_port(_last_announcement(lock))
        assert port is None or 0 < port < 65536
    lock.write_text('{"port": 8000}')
    assert _last_port(_last_announcement(lock)) == 8000


def test_code_survives_only_a_crash() -> None:
    code = "2" * 17
    assert _sign_in_code({"url": "http://127.0.0.1:8000", "sign_in_code": code}) == code
    for last in ({}, {"url": None, "sign_in_code": code}, {"url": "x", "sign_in_code": "2"}, {"url": "x"}):
        assert re.fullmatch(r"[2-9a-z]{17}", _sign_in_code(last))
        assert _sign_in_code(last) != code


def test_site_announcement_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check who joins a site or looks for one reads it at any time."""
    lock = tmp_path / "lock"
    lock.write_text('{"port": 8000, "url": "http://[2001:db8::7]:8000", "storage": "s3://clips/of/many"}')
    found: list[str] = []
    write = os.pwrite

    def look_and_write(descriptor: int, text: bytes, offset: int) -> int:
        found.append(lock.read_text())
        return write(descriptor, text, offset)

    with lock.open("r+") as held:
        site = EmbeddedSite(tmp_path, held.fileno(), 0, {"port": 8000, "url": "http://127.0.0.1:8000"})
        monkeypatch.setattr(os, "pwrite", look_and_write)
        site._announce()
        site._announce(url=None)
        monkeypatch.undo()
    said = [json.loads(text)["url"] for text in (*found, lock.read_text())]
    assert said == ["http://[2001:db8::7]:8000", "http://127.0.0.1:8000", None]


PROGRAM = """
import multiprocessing
import django
django.setup()
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from human_feedback_site.feedback.models import ApiToken
from human_feedback_site.feedback.services.accounts import token_of

processes = multiprocessing.get_context("fork")
begin = processes.Barrier(3)

def set_up():
    begin.wait()
    call_command("setup_embedded")

started = [processes.Process(target=set_up) for _ in range(3)]
[process.start() for process in started]
[process.join() for process in started]
assert [process.exitcode for process in started] == [0, 0, 0]
token = (settings.STATE_DIR / "token").read_text().strip()
assert token_of(token).user.username == "admin"
assert (User.objects.count(), ApiToken.objects.count()) == (1, 1)
"""


@pytest.fixture
def new_database(db: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a site whose database is new: SQLite's file, or one on the server in use."""
    variables = {"PATH": os.environ["PATH"], "TEACHER_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "state").mkdir()
    if connection.vendor != "postgresql":
        yield variables
        return
    name = f"set_up_at_once_{os.getpid()}"
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield variables | {"DATABASE_URL": f"{server}/{name}", "SECRET_KEY": os.environ["SECRET_KEY"]}
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_concurrent_setup_makes_one_admin(new_database: dict[str, str]) -> None:
    environment = new_database | {"DJANGO_SETTINGS_MODULE": "human_feedback_site.settings"}
    done = completed([sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], env=environment)
    assert done.returncode == 0, done.stderr

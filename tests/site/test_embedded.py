"""The embedded site is private to its owner and honours what was exported."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start sites in the folder ``state`` and return what they announce; they end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(hurry: str = "pass", **variables: str) -> dict[str, Any]:
        alone = "embedded.GRACE_SECONDS = 600.0"  # no run has joined it, and it is not to end meanwhile
        program = f"from human_feedback_site import embedded; {alone}; {hurry}; exit(embedded.main())"
        command = [sys.executable, "-c", program, "--bind", "127.0.0.1"]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
        with (tmp_path / "log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [*command, "--state-dir", str(tmp_path / "state")],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            try:
                announced: dict[str, Any] = json.loads((tmp_path / "state/site/lock").read_text())
            except (FileNotFoundError, ValueError):
                if started[-1].poll() is not None:
                    break
                time.sleep(0.1)
            else:
                return announced
        raise AssertionError((tmp_path / "log").read_text())

    yield start
    for process in started:
        process.terminate()
        process.wait(120)


def test_an_exported_public_address_is_served_and_used_in_links(start: Start, tmp_path: Path) -> None:
    site = start(TEACHER_PUBLIC_URL="http://labels.example:8080", ALLOWED_HOSTS="lab.example")
    for host in ("labels.example", "lab.example", "127.0.0.1"):
        assert requests.get(f"{site['url']}/livez", headers={"Host": host}, timeout=60).status_code == 200
    assert requests.get(f"{site['url']}/livez", headers={"Host": "evil"}, timeout=60).status_code == 400
    put = put_experiment(site, tmp_path)
    assert put.json()["invite_url"].startswith("http://labels.example:8080/join/")


def test_a_fresh_state_folder_is_its_owners_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state/site/runs").mkdir(parents=True)  # as a run makes it for its lock
    start()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state/site.sqlite3").stat().st_mode) == 0o600


def test_a_folder_that_was_there_before_stays_open_but_not_what_the_site_writes(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state/notes.txt").touch()
    start()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "state/site.sqlite3").stat().st_mode) == 0o600


def test_chores_are_done_and_one_that_fails_does_not_end_the_site(start: Start, tmp_path: Path) -> None:
    runs = tmp_path / "state/site/runs"
    runs.mkdir(parents=True)
    with (runs / "run.lock").open("w") as run:
        fcntl.flock(run, fcntl.LOCK_EX)
        site = start(hurry="embedded.MINUTE = 0.05")
        log = tmp_path / "log"
        with closing(sqlite3.connect(tmp_path / "state/site.sqlite3", timeout=60)) as database:
            with database:
                database.execute("DROP TABLE django_session")
            wait_until(lambda: "A chore failed and is tried again later: expired sessions" in log.read_text())
            put_experiment(site, tmp_path)
            with database:
                database.execute(
                    "UPDATE feedback_experiment SET waiting_for = 7, trainer_seen_at = '2020-01-01 00:00:00'"
                )
            waiting = "SELECT waiting_for FROM feedback_experiment"
            wait_until(lambda: database.execute(waiting).fetchone() == (None,))
        assert requests.get(f"{site['url']}/livez", timeout=60).status_code == 200


def test_a_long_log_begins_anew_and_the_one_before_is_kept(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "state/site.log"
    log.parent.mkdir()
    log.write_text("a long story\n" * 100)
    start(hurry="embedded.MINUTE = 0.05; embedded.LOG_BYTES = 1000")
    before = log.with_name("site.log.1")
    wait_until(lambda: before.exists() and log.stat().st_size == 0)
    assert before.read_text() == "a long story\n" * 100
    assert stat.S_IMODE(before.stat().st_mode) == 0o600


def test_the_port_can_be_chosen(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = min(taken.getsockname()[1], 65000)
        site = start(TEACHER_PORT=str(first))
        assert first <= site["port"] < first + 100
        assert site["port"] != taken.getsockname()[1]


def test_how_many_processes_production_has_is_nothing_to_it(start: Start) -> None:
    site = start(WEB_CONCURRENCY="abc")
    assert requests.get(f"{site['url']}/livez", timeout=60).status_code == 200


def test_a_port_that_is_none_stops_the_site(start: Start) -> None:
    with pytest.raises(AssertionError, match="TEACHER_PORT must be a whole number from 1 to 65535"):
        start(TEACHER_PORT="65536")


def put_experiment(site: dict[str, Any], folder: Path) -> requests.Response:
    token = (folder / "state/token").read_text().strip()
    body = {"run_id": "0b5e1d0e-5c3c-4b8c-9d5e-0d7f8a3c2b11", "env_id": "x", "prompt": "x", "fps": 20}
    return requests.put(
        f"{site['url']}/api/v1/experiments/hopper",
        json={**body, "has_true_reward": False},
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)

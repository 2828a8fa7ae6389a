"""Chores by the clock: a real worker with its beat on a real Redis, which may be away or die."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.signals import beat_init, celeryd_init
from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.celery import app
from human_feedback_site.environment import read_redis_url
from human_feedback_site.feedback.services.chores import CHORES
from tests.redis_server import PASSWORD, Redis
from tests.servers import assert_silence_is_given_up
from tests.site.conftest import Browser, Trainer
from tests.waiting import completed, wait_until

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
QUICK = """
import os
from pathlib import Path
from celery.signals import beat_embedded_init
from human_feedback_site.celery import app

@beat_embedded_init.connect
def tell(**_):
    Path(os.environ["TEACHER_STATE_DIR"], "beat.pid").write_text(str(os.getpid()))

app.conf.beat_schedule = {"quick": {"task": "chores.sessions", "schedule": 0.5, "options": {"expires": 5}}}
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """A Redis that is not started yet."""
    redis = Redis(tmp_path)
    yield redis
    redis.kill()


@pytest.fixture
def environment(tmp_path: Path, redis: Redis, migrated_database: Path) -> dict[str, str]:
    """The settings of a site with a database of its own."""
    (tmp_path / "state").mkdir()
    shutil.copy(migrated_database, tmp_path / "state/site.sqlite3")
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "TEACHER_STATE_DIR": str(tmp_path / "state"),
        "REDIS_URL": redis.url,
    }


class Worker:
    """A running worker with its beat."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        (folder / "quick_chores.py").write_text(QUICK)
        (folder / "work").mkdir()
        self._database = folder / "state/site.sqlite3"
        self._beat = folder / "state/beat.pid"
        self._log = folder / "worker.log"
        command = [
            *(str(BIN / "celery"), "--app", "quick_chores", "worker", "--beat", "--concurrency", "1"),
            *("--schedule", str(folder / "schedule"), "--hostname", "chores@%h"),
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=environment, cwd=folder / "work", stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def leave_a_chore(self) -> None:
        """Put a session there that has expired."""
        with closing(sqlite3.connect(self._database, timeout=60)) as database, database:
            database.execute("INSERT INTO django_session VALUES ('old', '', '2020-01-01 00:00:00')")

    def is_done(self) -> bool:
        with closing(sqlite3.connect(self._database, timeout=60)) as database:
            return bool(database.execute("SELECT count(*) FROM django_session").fetchone() == (0,))

    def kill_beat(self) -> None:
        """Kill the process that hands out chores, once it has begun to."""
        self.until(lambda: self._beat.exists() and self._beat.read_text() != "")
        os.kill(int(self._beat.read_text()), signal.SIGKILL)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until something holds, as long as the worker lives."""
        wait_until(lambda: true() or self.process.poll() is not None, lambda: self.log, pause=0.05)
        assert self.process.poll() is None, self.log

    def ends(self) -> int:
        """Its exit status; where it does not end, it is killed and its log shown.

        A process of the pool whose last result was lost with the connection waits for it for 30 seconds.
        """
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self.log) from None

    def kill(self) -> None:
        """Kill it with its beat and its pool."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def worker(tmp_path: Path, environment: dict[str, str]) -> Iterator[Worker]:
    """A worker that is started while Redis is away."""
    worker = Worker(tmp_path, environment)
    yield worker
    worker.kill()


def test_chores_are_done_whenever_redis_is_there(worker: Worker, redis: Redis, tmp_path: Path) -> None:
    worker.leave_a_chore()
    worker.until(lambda: "Cannot connect to redis" in worker.log)
    redis.start()
    worker.until(worker.is_done)

    redis.kill()
    worker.until(lambda: "Can't queue chores because Redis isn't responding" in worker.log)
    worker.leave_a_chore()
    redis.start()
    worker.until(worker.is_done)

    worker.process.send_signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert "has died" not in worker.log
    assert PASSWORD not in worker.log
    assert "SchedulingError" not in worker.log  # a traceback for every chore that is due
    assert not list((tmp_path / "work").iterdir())  # it keeps no schedule, which would be a pickle
    assert not list(tmp_path.glob("schedule*"))


def test_a_worker_whose_beat_is_killed_ends_and_can_be_started_again(worker: Worker, redis: Redis) -> None:
    redis.start()
    worker.leave_a_chore()
    worker.until(worker.is_done)
    worker.kill_beat()
    assert worker.ends() == 1
    line = (
        "The beat scheduler, which queues the chores, has died; this worker is exiting so that "
        "both are restarted."
    )
    assert line in worker.log


def test_it_ends_while_redis_is_away_too(worker: Worker) -> None:
    worker.until(lambda: "Cannot connect to redis" in worker.log)
    worker.kill_beat()
    assert worker.ends() == 1


def test_an_interrupt_from_the_terminal_is_no_death_of_the_beat(worker: Worker, redis: Redis) -> None:
    redis.start()
    worker.leave_a_chore()
    worker.until(worker.is_done)
    os.killpg(worker.process.pid, signal.SIGINT)
    worker.ends()
    assert "has died" not in worker.log


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "redis://",
        "redis://:hidden@:6379/0",
        "redis://:hidden@host:port/0",
        "redis://:hidden@host:0/0",
        "redis://:hidden@host:99999/0",
        "redis://:hidden@host:6379/chores",
        "redis://:hidden@host:6379/0/1",
        "redis://:hid/den@host:6379/0",
        "redis://:hid#den@host:6379/0",
        "redis://:hid?den@host:6379/0",
        "redis://:hid den@host:6379/0",
        "redis://:hidden@[::1:6379/0",
        "redis://:hidden@host:6379/0?timeout=1",
        "rediss://:hidden@host:6379/0",  # nothing sets TLS up
    ],
)
def test_other_addresses_than_a_redis_are_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    with pytest.raises(ImproperlyConfigured, match="REDIS_URL must look like") as caught:
        read_redis_url()
    assert "hid" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://host", "redis://host/", "redis://host:6379/12", "redis://user:p@[::1]:6379/0"),
        *("redis://:hid%2Fd%23en@host:6379/0", "  redis://redis_1:6379/0\n"),
    ],
)
def test_valid_redis_urls_are_accepted(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    assert read_redis_url() == url.strip()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"REDIS_URL": "redis://:hid/den@host:port/0"},
            "REDIS_URL must look like redis://:password@host:6379/0",
        ),
        ({"MEDIA_KEEP_DAYS": "abc"}, "MEDIA_KEEP_DAYS must be a whole number from 0 to 9999, not 'abc'"),
    ],
    ids=str,
)
def test_broken_worker_says_why(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    command = [str(BIN / "celery"), "--app", "human_feedback_site.celery", "worker", "--beat"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TEACHER_STATE_DIR": str(tmp_path),
        **variables,
    }
    done = completed(command, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"Can't start the site's maintenance tasks: {message}")
    assert "hid" not in line


@pytest.mark.parametrize("start", [celeryd_init, beat_init], ids=["worker", "beat"])
def test_neither_worker_nor_beat_starts_without_a_redis(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """Render workers, whose program other tests may have loaded here, listen to the same signal."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    (own,) = [each for each in start._live_receivers(None) if each.__module__ == "human_feedback_site.celery"]
    with pytest.raises(
        SystemExit, match=r"^Can't start the site's maintenance tasks: REDIS_URL must look like"
    ):
        own(sender=None)


def test_every_chore_has_its_time() -> None:
    app.loader.import_default_modules()
    chores = {name for name in app.tasks if not name.startswith("celery.")}
    assert len(chores) == len(CHORES)
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} == chores


@pytest.mark.parametrize("name", app.conf.beat_schedule)
def test_an_order_has_lapsed_when_the_next_is_given(name: str) -> None:
    entry = app.conf.beat_schedule[name]
    due = next_due(entry["schedule"], datetime(2026, 1, 1, tzinfo=UTC))
    for _ in range(50):
        after = next_due(entry["schedule"], due)
        assert after - due >= timedelta(seconds=entry["options"]["expires"])
        due = after


def next_due(schedule: Any, after: datetime) -> datetime:
    last, step, _now = schedule.remaining_delta(after)
    moment: datetime = last + step
    return moment


def test_a_chore_has_ended_before_it_is_given_to_another_worker() -> None:
    assert app.conf.task_time_limit == 60
    assert app.conf.broker_transport_options["visibility_timeout"] == 120


def test_a_redis_that_says_no_more_is_given_up() -> None:
    assert_silence_is_given_up(app.conf.broker_transport_options)


LOADED = """
import sys
from django.test import Client
from human_feedback_site.wsgi import application
assert Client().get("/livez", headers={"Host": "localhost"}).status_code == 200
print(sorted({name.partition(".")[0] for name in sys.modules} & {"celery", "kombu", "redis"}))
"""


def test_no_redis_for_labeling(trainer: Trainer, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as redis:
        redis.settimeout(0.1)
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{redis.getsockname()[1]}/0")
        trainer.register(2)
        first, second = browser.lease(2)
        browser.undo(browser.answer(first))
        assert browser.answer(second)["status"] == "counted"
        assert len(trainer.decisions()["items"]) == 3
        with pytest.raises(TimeoutError):
            redis.accept()


def test_the_web_process_loads_neither_celery_nor_redis(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TEACHER_STATE_DIR": str(tmp_path),
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }
    done = completed([sys.executable, "-c", LOADED], env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr

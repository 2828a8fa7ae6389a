"""The main job as its users run it: trainer, site and scripted labelers, each a process of its own."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import requests
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stack.audit import Audit, Evidence, audit
from teacher.teach import main
from tests.waiting import wait_until

OLD_RUN = Path(__file__).with_name("old_run.zip")
"""An unfinished run of 0.1.0 with its site; ``old_run.py`` makes it."""


class World:
    """A folder with runs and a site, and the processes started in it."""

    def __init__(self, folder: Path, env_id: str, name: str) -> None:
        self.folder = folder
        self.experiment = f"{env_id}-{name}"
        self.run_dir = folder / "runs" / env_id / name
        self.answers = folder / "answers.jsonl"
        self._line = ["-p", "human", "-e", env_id, "-n", name, "-V"]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *settings: str) -> "subprocess.Popen[bytes]":
        """A new run."""
        return self._spawn("teacher.teach", *self._line, *settings)

    def resume(self, *settings: str) -> "subprocess.Popen[bytes]":
        return self._spawn("teacher.teach", "--resume", str(self.run_dir), *settings)

    def finish(self) -> None:
        """Press Finish on the experiment's page, as the admin."""
        site, code = self.site()["url"], self.site()["sign_in_code"]
        with requests.Session() as browser:
            browser.get(f"{site}/j/{code}").raise_for_status()
            address = f"{site}/experiments/{self.experiment}/finish"
            browser.get(address).raise_for_status()
            token = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
            browser.post(address, {"confirm": "yes"} | token).raise_for_status()

    def bots(self, count: int = 3) -> "subprocess.Popen[bytes]":
        options = ["--site", self.site()["url"], "--experiment", self.experiment, "--count", str(count)]
        files = ["--token-file", str(self.folder / "state" / "token"), "--log", str(self.answers)]
        return self._spawn("teacher.bots", *options, *files)

    def _spawn(self, module: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=self.folder, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def site(self) -> dict[str, Any]:
        site: dict[str, Any] = json.loads((self.folder / "state" / "site" / "lock").read_text())
        return site

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the site's database, read from outside."""
        path = self.folder / "state" / "site.sqlite3"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
            return database.execute(sql).fetchall()

    def registered(self) -> int:
        try:
            return int(self.query("SELECT count(*) FROM feedback_comparison")[0][0])
        except sqlite3.OperationalError:  # no database, or no tables yet
            return 0

    def acknowledged(self) -> list[dict[str, Any]]:
        """The answers that the bots saw acknowledged."""
        lines = self.answers.read_text().splitlines() if self.answers.exists() else []
        return [json.loads(line) for line in lines]

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 400) -> None:
        failure = lambda: f"{what}: not within {seconds} s; {self.last_words()}"  # noqa: E731
        wait_until(condition, failure, seconds=seconds, pause=0.1)

    def last_words(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob("state/*.log")]
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError, ValueError):
            os.kill(self.site()["pid"], signal.SIGTERM)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[str, str], World]]:
    worlds: list[World] = []

    def make(env_id: str, name: str) -> World:
        worlds.append(World(tmp_path, env_id, name))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def assert_nothing_lost_doubled_or_inverted(world: World, wanted: int, bots_killed: int) -> None:
    """What the bots saw acknowledged is in the site once, and reached the trainer with the right sign."""
    found = audited(world, wanted, bots_killed)
    assert found.holds, found
    sides = world.query("SELECT DISTINCT swapped FROM feedback_label")
    assert len(sides) == 2, "the sides were never swapped"


def audited(world: World, wanted: int, bots_killed: int) -> Audit:
    return audit(
        Evidence(
            experiment=world.experiment,
            wanted=wanted,
            bots=3,
            answers=world.answers,
            ledger=world.run_dir / "ledger.sqlite3",
            query=world.query,
            bots_killed=bots_killed,
        )
    )


def assert_learned(run_dir: Path) -> EventAccumulator:
    """The inverted pendulum came at least half of the way to its best return, 1 for each of 25 steps."""
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    returns = [event.value for event in events.Scalars("agent/true_reward_per_episode")]
    assert returns[-1] > returns[0] + 0.5 * (25 - returns[0]), returns
    return events


@pytest.mark.parametrize(("predictor", "agent"), [("rl", "ppo"), ("synth", "ppo"), ("synth", "trpo")])
def test_an_agent_learns_from_the_true_reward_and_from_synthetic_labels(
    predictor: str, agent: str, here: Path
) -> None:
    labels = "" if predictor == "rl" else "-L 20 -l 50"
    line = f"-p {predictor} -a {agent} -e InvertedPendulum-v1 -n x {labels} -t 18000 -V"
    assert main(line.split()) == 0
    assert_learned(here / "runs" / "InvertedPendulum-v1" / "x")


@pytest.mark.slow
def test_an_agent_learns_from_labelers_and_no_label_is_lost_when_trainer_site_and_bots_are_killed(
    make_world: Callable[[str, str], World],
) -> None:
    world = make_world("InvertedPendulum-v1", "learn")
    settings = ["-L", "20", "-l", "50", "-t", "20000", "--prompt", "Which pole stays more upright?"]
    trainer = world.start(*settings)
    world.until(lambda: world.registered() > 0, "the first comparison")
    bots = world.bots()

    world.until(lambda: len(world.acknowledged()) >= 5, "5 answers")
    trainer.kill()
    trainer.wait()
    trainer = world.resume()

    world.until(lambda: len(world.acknowledged()) >= 15, "15 answers")
    os.kill(world.site()["pid"], signal.SIGKILL)

    world.until(lambda: len(world.acknowledged()) >= 25, "25 answers")
    bots.kill()
    bots.wait()
    bots = world.bots()

    world.until(lambda: trainer.poll() is not None, "the end of training")
    assert trainer.returncode == 0, world.last_words()
    assert bots.wait(240) == 0, world.last_words()
    assert_nothing_lost_doubled_or_inverted(world, wanted=50, bots_killed=3)
    assert world.query("SELECT state FROM feedback_experiment") == [("finished",)]

    # It is given more of both, finished on the site while it waits for them, and goes on when asked to.
    trainer = world.resume("-t", "26000", "-l", "75")
    world.until(lambda: world.query("SELECT state FROM feedback_experiment") == [("running",)], "more")
    world.finish()
    world.until(lambda: trainer.poll() is not None, "the end by the site")
    assert trainer.returncode == 0, world.last_words()
    assert world.resume().wait(240) == 2
    assert f"--resume {world.run_dir} --reopen\n" in world.last_words()
    trainer = world.resume("--reopen")
    world.until(lambda: world.query("SELECT state FROM feedback_experiment") == [("running",)], "reopened")
    bots = world.bots()
    world.until(lambda: trainer.poll() is not None, "the end of all")
    assert trainer.returncode == 0, world.last_words()
    assert bots.wait(240) == 0, world.last_words()
    assert_nothing_lost_doubled_or_inverted(world, wanted=75, bots_killed=3)

    events = assert_learned(world.run_dir)
    assert events.Scalars("labels/answered")[-1].value >= 25  # training runs at most 20 ahead of people
    assert {
        "agent/total_steps",
        "predictor/loss",
        "predictor/validation_loss",
        "predictor/accuracy",
        "predictor/correlation",
        "predictor/rank_correlation",
        "labels/desired",
        "labels/asked",
    } <= set(events.Tags()["scalars"])


@pytest.mark.slow
def test_run_of_0_1_0_and_its_site_go_on_with_every_label(make_world: Callable[[str, str], World]) -> None:
    """Old files, made by that version's code: labels that the trainer hasn't read, clips not made yet."""
    world = make_world("Pendulum-v1", "old")
    with ZipFile(OLD_RUN) as packed:
        packed.extractall(world.folder)
    config = world.run_dir / "config.json"
    saved = json.loads(config.read_text()) | {"state_dir": str(world.folder / "state")}
    config.write_text(json.dumps(saved))
    columns = (
        "SELECT uuid, labeler_id, comparison_id, choice, swapped, status FROM feedback_label ORDER BY id"
    )
    labels = world.query(columns)
    assert len(labels) >= 12
    trainer = world.resume(*"-t 16384 -l 38".split())  # runs at most 20 ahead of people
    world.until(lambda: (world.folder / "state/site/lock").exists() and "url" in world.site(), "the site")
    bots = world.bots(2)
    world.until(lambda: trainer.poll() is not None, "the end of training")
    assert trainer.returncode == 0, world.last_words()
    assert bots.wait(60) == 0, world.last_words()
    assert world.query(columns)[: len(labels)] == labels
    found = audited(world, wanted=38, bots_killed=2)
    assert not any(found.faults.values()), found
    assert found.reached >= 18 > len(labels)

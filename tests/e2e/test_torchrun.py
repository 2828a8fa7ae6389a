"""One run on two processes, as ``torchrun`` starts them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from teacher.data.checkpoint import load_state
from teacher.teach import main
from tests.waiting import free_port

pytestmark = pytest.mark.slow

TEACH = [sys.executable, "-m", "teacher.teach"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *TEACH[1:]]
SETTINGS = "-p synth -e teacher/Reacher-v1 -l 40 -L 20 -i 20 -V".split()
PROGRESS = re.compile(r"^ +[\d,]+ +-\d", re.MULTILINE)


class Launched:
    """A command under way; what it says in one text, and with it all it started end."""

    def __init__(self, command: list[str], folder: Path, **variables: str) -> None:
        self.said = ""
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            yield line

    def rank(self, rank: int) -> psutil.Process:
        started = psutil.Process(self._process.pid).children()
        return next(process for process in started if process.environ().get("RANK") == str(rank))

    def wait(self) -> int:
        for _ in self.lines():
            pass
        return self._process.wait(240)

    def kill(self) -> None:
        if self._process.poll() is None:
            for process in psutil.Process(self._process.pid).children():
                process.kill()
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def launched() -> Iterator[list[Launched]]:
    """Return what to end with the test."""
    commands: list[Launched] = []
    yield commands
    for command in commands:
        command.kill()


def start_ranks(line: list[str], folder: Path, port: int) -> list[Launched]:
    """Two processes with the variables that torchrun sets, without its own import of torch."""
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [Launched([*TEACH, *line], folder, RANK=str(rank), **address) for rank in range(2)]


def test_two_ranks_make_one_run(tmp_path: Path, launched: list[Launched]) -> None:
    # Options of which one rank alone would make steps, choose, or train the critic.
    asking = "--queries.selection active --queries.exploration_frac 0.3 --value_refit 2".split()
    launched += start_ranks([*SETTINGS, *asking, "-n", "two", "-t", "6000"], tmp_path, free_port())

    assert [rank.wait() for rank in launched] == [0, 0], launched[0].said

    assert launched[1].said == ""
    said = launched[0].said
    assert said.count("Training teacher/Reacher-v1") == said.count("Done after") == 1
    assert len(PROGRESS.findall(said)) == 2, "each round should make the steps of both ranks"
    (checkpoint,) = tmp_path.glob("runs/*/*/checkpoint*")
    (_,) = tmp_path.glob("runs/*/*/tensorboard/*")
    state = load_state(checkpoint)
    assert 8000 < state["agent"]["total_steps"] <= 8192
    assert state["agent"]["normalizer"]["count"] == state["agent"]["total_steps"]


def test_a_rank_that_is_killed_ends_the_run_and_one_process_goes_on_with_it(
    here: Path, launched: list[Launched]
) -> None:
    run = Launched([*TORCHRUN, *SETTINGS, "-n", "lost", "-t", "16000"], here)
    launched.append(run)
    next(line for line in run.lines() if PROGRESS.match(line))
    run.rank(1).kill()

    assert run.wait() != 0

    assert "process of this run has ended (" in run.said or "another process of the run dies" in run.said, (
        run.said
    )
    assert run.said.count("To resume") == 1
    assert "--nproc-per-node 2 -m teacher.teach --resume runs/teacher-Reacher-v1/lost" in run.said
    (checkpoint,) = here.glob("runs/*/*/checkpoint*")
    saved_at = load_state(checkpoint)["agent"]["total_steps"]
    assert 0 < saved_at < 16000

    assert main(["--resume", "runs/teacher-Reacher-v1/lost"]) == 0
    assert load_state(checkpoint)["agent"]["total_steps"] >= 16000


def test_rank_0_refuses_once(tmp_path: Path, launched: list[Launched]) -> None:
    launched += start_ranks("-p rl -e ShortHoper-v1 -n x".split(), tmp_path, free_port())

    assert [rank.wait() for rank in launched] == [2, 2]

    assert launched[0].said.startswith("teach: no environment is registered as ShortHoper-v1")
    assert launched[1].said == ""
    assert not list(tmp_path.iterdir())

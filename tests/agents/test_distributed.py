"""Ranks that train together are one process with all their environments."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.distributed import ALONE, joined_ranks
from agents.errors import InvalidConfigError
from tests.agents.programs import train_together
from tests.conftest import MakeOnce

PROGRAM = Path(train_together.__file__)
SIZE = 2
Results = dict[str, Any]


@pytest.fixture(scope="module")
def folder(make_once: MakeOnce) -> Path:
    """Return what the program wrote alone, which it is in this process, and as each of two ranks."""
    return make_once("ranks", train_alone_and_together)


def train_alone_and_together(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(SIZE), **address} for rank in range(SIZE)]
    processes = [
        subprocess.Popen([sys.executable, PROGRAM, folder], env={**os.environ, **rank}) for rank in ranks
    ]
    try:
        train_together.main(folder)
        assert [process.wait(100) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def alone(folder: Path) -> Results:
    return dict(np.load(folder / "0-of-1.npz"))


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Results]:
    return [dict(np.load(folder / f"{rank}-of-{SIZE}.npz")) for rank in range(SIZE)]


def test_ranks_learn_what_one_process_learns(alone: Results, ranks: list[Results]) -> None:
    for name, expected in alone.items():
        if not name.endswith("/own_valid"):
            np.testing.assert_allclose(ranks[0][name], expected, rtol=1e-5, atol=1e-7, err_msg=name)
    assert np.abs(alone["trpo-box/policy.head.log_std"]).max() > 1e-3, "updates large beside the tolerance"


def test_all_ranks_are_the_same_to_the_last_bit(ranks: list[Results]) -> None:
    first, second = ranks
    for name, value in first.items():
        if not name.endswith("/own_valid"):
            np.testing.assert_array_equal(second[name], value, err_msg=name)


def test_ranks_have_different_episodes_that_end(alone: Results, ranks: list[Results]) -> None:
    for name in ("numpy-box/own_valid", "numpy-discrete/own_valid"):
        first, second = (rank[name] for rank in ranks)
        assert (first != second).any()
        np.testing.assert_array_equal(first + second, alone[name])
    first, second = (rank["torch-box/own_valid"] for rank in ranks)
    assert (first + second < 6 * 40).all(), "some steps should be dummies"


def test_a_rank_that_dies_is_told_of_in_one_line(folder: Path, ranks: list[Results]) -> None:
    told = (folder / "lost").read_text()
    assert told.startswith("Another process of this run has ended (")
    assert "\n" not in told


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        {"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "none"},
    ],
)
def test_inconsistent_variables_refused(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refusal = (
        r"^(The environment variables RANK, .* are incomplete or invalid: .*"
        r"|Can't connect the 2 processes at .* \(.*\); check that .*)$"
    )
    with pytest.raises(InvalidConfigError, match=refusal), joined_ranks():
        pass


def test_without_a_launcher_a_process_is_alone() -> None:
    with joined_ranks() as ranks:
        assert ranks is ALONE
        values = np.arange(3.0)
        ranks.sum(values)
        assert values.tolist() == [0, 1, 2]
        assert ranks.gather(values).tolist() == [[0, 1, 2]]
        assert ranks.broadcast(b"word") == b"word"
        assert ranks.device("cuda") == "cuda"

"""Ranks that train together are one process; every task trains with the documented hyperparameters."""

import dataclasses
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from agents.defaults import ATARI, BY_NAME, GENERAL, TaskDefaults, defaults_for
from agents.distributed import ALONE, joined_ranks
from agents.errors import InvalidConfigError
from agents.ppo import PPOConfig
from agents.trpo import TRPOConfig
from docs.result_pages import defaults_table
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


@pytest.mark.parametrize(
    ("env_id", "row"),
    [
        ("CartPole-v1", BY_NAME["CartPole"]),
        ("CartPole-v0", BY_NAME["CartPole"]),
        ("gymnasium.envs.classic_control:Pendulum-v1", BY_NAME["Pendulum"]),
        ("LunarLander-v3", BY_NAME["LunarLander"]),
        ("LunarLanderContinuous-v3", BY_NAME["LunarLanderContinuous"]),
        ("HalfCheetah-v5", BY_NAME["HalfCheetah"]),
        ("Hopper-v5", GENERAL),
        ("Reacher-v5", BY_NAME["Reacher"]),
        ("InvertedPendulum-v5", GENERAL),
        ("teacher/Pendulum-v1", GENERAL),
        ("MountainCarContinuous-v0", GENERAL),
        ("nobody:Knows-v3", GENERAL),
    ],
)
def test_a_task_gets_the_row_of_its_name_else_the_general_one(env_id: str, row: TaskDefaults) -> None:
    assert defaults_for(env_id) is row


def made_by_function() -> gym.Env[Any, Any]:
    raise NotImplementedError


def test_a_task_of_atari_is_known_by_where_its_class_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made_by_function.__module__ = "ale_py.env"
    for env_id, entry_point in {
        "ALE/Pong-v5": "ale_py.env:AtariEnv",
        "Pong-v0": made_by_function,
        "Imitation-v0": "ale_python.env:AtariEnv",
    }.items():
        spec = gym.envs.registration.EnvSpec(env_id, entry_point)  # type: ignore[arg-type]
        monkeypatch.setitem(gym.registry, env_id, spec)
    assert defaults_for("ALE/Pong-v5") is ATARI
    assert defaults_for("Pong-v0") is ATARI
    assert defaults_for("Imitation-v0") is GENERAL


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5", "teacher/ShortHopper-v1"])
def test_mujoco_trains_with_what_the_figures_in_the_readme_rest_on(env_id: str) -> None:
    row = defaults_for(env_id)
    assert row.num_envs == 8
    assert row.ppo_for(300_000, normalize_rewards=False) == PPOConfig()
    assert row.ppo_for(300_000, normalize_rewards=True) == PPOConfig(normalize_rewards=True)
    assert PPOConfig().num_steps == 256


def test_the_learning_rate_falls_over_the_run_where_the_row_says_so() -> None:
    assert BY_NAME["CartPole"].ppo_for(50_000, normalize_rewards=False).anneal_timesteps == 50_000
    assert BY_NAME["Pendulum"].ppo_for(50_000, normalize_rewards=False).anneal_timesteps is None


@pytest.mark.parametrize(
    ("space", "factor"),
    [
        (Box(-1, 1, (6,), np.float32), 6),
        (Box(-1, 1, (2, 2), np.float32), 4),
        (Discrete(4), 1),
        (MultiDiscrete([3, 3]), 1),  # of these sb3-contrib adds the divergences
    ],
)
def test_trpo_limits_the_kl_of_the_joint_action(space: gym.Space[Any], factor: int) -> None:
    row = BY_NAME["HalfCheetah"]
    config = row.trpo_for(space, normalize_rewards=True)
    assert config.target_kl == pytest.approx(factor * 0.04)
    assert config.cg_damping == pytest.approx(factor * 0.1)
    assert config.normalize_rewards
    unscaled = dataclasses.replace(config, target_kl=0.04, cg_damping=0.1, normalize_rewards=False)
    assert unscaled == row.trpo


def test_the_documentation_shows_every_row_and_what_it_sets() -> None:
    table = dict(re.findall(r"^\| ([^|]+) \| (\d+ \| .*) \|$", defaults_table(), re.MULTILINE))
    rows = {"MuJoCo and all others": GENERAL, **BY_NAME, "Atari": ATARI}
    assert list(table) == list(rows)
    for name, row in rows.items():
        environments, ppo, trpo, source = table[name].split(" | ")
        assert (environments, source) == (str(row.num_envs), row.source)
        assert ("linear learning-rate decay" in ppo) == row.anneal
        for shown, config, usual in ((ppo, row.ppo, PPOConfig()), (trpo, row.trpo, TRPOConfig())):
            values, defaults = dataclasses.asdict(config), dataclasses.asdict(usual)
            written = dict(
                re.findall(r"(\w+) (\S+?)(?:, |$)", shown.removesuffix(", linear learning-rate decay"))
            )
            changed = {key for key in values if values[key] != defaults[key]} | {"num_steps"}
            assert written == {key: str(values[key]) for key in changed}

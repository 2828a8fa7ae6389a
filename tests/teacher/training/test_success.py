"""Episodes record the success that an environment reports, and runs report its rate."""

import dataclasses
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.settings.config import TeachConfig
from teacher.training.builder import open_run


class Silent(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Its task is solved in the third step of every third episode, and every fifth episode ends early."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: Any = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space: Any = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, **arguments: Any) -> None:
        self.render_mode = arguments.get("render_mode")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._seed, self._steps = seed or 0, 0
        return np.zeros(1, np.float32), {"success": True}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        ends = self._steps == 5 and self._seed % 5 == 0
        info = {"success": float(self._steps == 3 and self._seed % 3 == 0)}
        return np.zeros(1, np.float32), 0.0, ends, False, info

    def render(self) -> NDArray[np.uint8]:
        return np.zeros((8, 8, 3), np.uint8)


class Reporting(Silent):
    """Reports what the other keeps to itself."""

    reports_success = True


gym.register("Silent-v0", Silent, max_episode_steps=9)
gym.register("Reporting-v0", Reporting, max_episode_steps=9)
REPORTING = describe_task("Reporting-v0")
CAPTURED = dataclasses.replace(REPORTING, captures=True)


def recorded(
    task: TaskInfo, workers: int = 1, mode: AutoresetMode = AutoresetMode.NEXT_STEP
) -> list[Trajectory]:
    envs = make_vector_env(task, 3, seed=1, workers=workers, autoreset_mode=mode)
    envs.reset()
    for _ in range(200):
        outcome = envs.step(np.zeros((3, 1), np.float32))
        ended = outcome[2] | outcome[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
    envs.close()
    return envs.drain()


@pytest.mark.parametrize(
    ("task", "workers", "mode"),
    [
        *((REPORTING, workers, mode) for workers in (1, 2) for mode in AutoresetMode),
        *((CAPTURED, workers, AutoresetMode.NEXT_STEP) for workers in (1, 2)),
    ],
)
def test_an_episode_succeeds_with_any_of_its_steps(task: TaskInfo, workers: int, mode: AutoresetMode) -> None:
    episodes = recorded(task, workers, mode)
    finished = [episode for episode in episodes if episode.finished]
    assert 60 < len(finished) < len(episodes)
    assert [episode.succeeded for episode in finished] == [episode.seed % 3 == 0 for episode in finished]
    assert {(episode.succeeded, episode.terminated) for episode in finished} == {
        *((True, True), (True, False), (False, True), (False, False))
    }
    assert {episode.succeeded for episode in episodes if not episode.finished} == {None}


def test_an_environment_must_declare_that_it_reports_success() -> None:
    task = describe_task("Silent-v0")
    assert not task.reports_success
    assert {episode.succeeded for episode in recorded(task)} == {None}


def reported(env_id: str, folder: Path, episodes: int = 8) -> tuple[dict[str, float], list[float]]:
    """Return a run's metrics after some random episodes, and the success rates in its TensorBoard file."""
    config = TeachConfig(env_id=env_id, predictor="rl", name="x", no_videos=True, runs_dir=str(folder))
    with open_run(config, Console(quiet=True)) as run:
        run.remember(list(islice(random_trajectories(run.task, seed=1), episodes)))
        values = run.report({}, {})
    scalars = EventAccumulator(str(run.config.run_dir / "tensorboard")).Reload()
    shown = "agent/success_rate" in scalars.Tags()["scalars"]
    return values, [event.value for event in scalars.Scalars("agent/success_rate")] if shown else []


def test_a_run_reports_the_share_of_successful_episodes(tmp_path: Path) -> None:
    values, rates = reported("Reporting-v0", tmp_path)
    seeds = [episode.seed for episode in islice(random_trajectories(REPORTING, seed=1), 8)]
    share = np.mean([seed % 3 == 0 for seed in seeds])
    assert 0 < share < 1
    assert values["agent/success_rate"] == share
    assert rates == pytest.approx([share])


def test_before_the_first_episode_has_ended_the_rate_is_unknown(tmp_path: Path) -> None:
    values, rates = reported("Reporting-v0", tmp_path, episodes=0)
    assert np.isnan(values["agent/success_rate"])
    assert rates == []


def test_a_run_whose_environment_reports_no_success_shows_no_rate(tmp_path: Path) -> None:
    values, rates = reported("Silent-v0", tmp_path)
    assert "agent/success_rate" not in values
    assert rates == []

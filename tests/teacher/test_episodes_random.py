"""Random episodes, and which environments they show to be unsuitable."""

from itertools import islice
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from teacher.envs.random_episodes import check_episode_lengths, check_random_episodes, random_trajectories
from teacher.envs.tasks import describe_task
from teacher.errors import EnvironmentUnsuitableError


def test_random_trajectories_are_finished_and_reproducible() -> None:
    task = describe_task("CartPole-v1")
    first = list(islice(random_trajectories(task, seed=3), 12))
    again = list(islice(random_trajectories(task, seed=3, workers=3), 12))
    other = list(islice(random_trajectories(task, seed=4), 12))
    assert all(trajectory.finished for trajectory in first)
    assert [t.recipe().to_json() for t in first] == [t.recipe().to_json() for t in again]
    assert not {t.seed for t in first} & {t.seed for t in other}
    assert len({t.seed for t in first}) == 12


def test_random_actions_fill_the_action_box() -> None:
    trajectory = next(random_trajectories(describe_task("ShortHumanoid-v1"), seed=0, num_envs=1))
    assert np.abs(trajectory.actions).max() == pytest.approx(0.4, abs=0.01)
    assert trajectory.actions.mean() == pytest.approx(0, abs=0.02)


def test_too_short_episodes_are_refused_with_a_value_that_works() -> None:
    lengths = [30] * 41 + [90] * 9
    with pytest.raises(EnvironmentUnsuitableError, match=r"9 of 50 .* length is 30: pass --segment_steps 30"):
        check_episode_lengths(lengths, 75)
    check_episode_lengths(lengths, 30)


def test_a_fifth_of_the_episodes_is_enough() -> None:
    check_episode_lengths([30] * 40 + [90] * 10, 75)


def test_episodes_that_end_early_need_to_be_allowed() -> None:
    task = describe_task("CartPole-v1")
    with pytest.raises(EnvironmentUnsuitableError, match=r"leaks the reward.*--allow_variable_horizon"):
        check_random_episodes(task, 10, seed=0, allow_variable_horizon=False)
    check_random_episodes(task, 10, seed=0, allow_variable_horizon=True)


def test_cartpole_is_too_short_for_its_own_clips() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="--segment_steps"):
        check_random_episodes(describe_task("CartPole-v1"), 75, seed=0, allow_variable_horizon=True)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "teacher/Pendulum-v1", "Hopper-v1"])
def test_fixed_horizons_pass(env_id: str) -> None:
    check_random_episodes(describe_task(env_id), 15, seed=0, allow_variable_horizon=False)


def test_a_segment_longer_than_the_horizon_is_refused() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="pass --segment_steps 25"):
        check_random_episodes(describe_task("teacher/Pendulum-v1"), 26, seed=0, allow_variable_horizon=False)


class _Endless(gym.Env[Any, Any]):
    """Counts how far it was ever played."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    farthest: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        type(self).farthest = max(self.farthest, self.time)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_where_any_length_is_allowed_episodes_are_tried_no_further_than_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand steps of fifty episodes take minutes where each one draws a picture."""
    spec = gym.envs.registration.EnvSpec("Endless-v0", lambda **_: _Endless(), max_episode_steps=1000)
    monkeypatch.setitem(gym.registry, "Endless-v0", spec)
    told: list[int] = []
    check_random_episodes(
        describe_task("Endless-v0"), 15, seed=0, allow_variable_horizon=True, tell=told.append
    )
    assert _Endless.farthest == 15
    assert told == list(range(51))

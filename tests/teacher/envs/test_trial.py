"""The rule by which random episodes decide how long segments are and which environments are refused."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from teacher.envs.make import make_env
from teacher.envs.trial import (
    TRIAL_EPISODES,
    TRIAL_STEPS,
    Trial,
    fillings,
    of_fixed_length,
    try_episodes,
    usual_length,
)


def test_a_fifth_of_the_episodes_is_enough() -> None:
    assert Trial([30] * 40 + [90] * 10, 500).fits(75)
    assert not Trial([30] * 41 + [90] * 9, 500).fits(75)


def test_a_segment_is_shortened_only_where_it_does_not_fit() -> None:
    assert Trial([30] * 40 + [90] * 10, 500).fitted(75) == 75
    assert Trial([30] * 41 + [90] * 9, 500).fitted(75) == 15
    assert Trial([1] * 50, 500).fitted(75) == 1
    assert of_fixed_length(50).fitted(75) == 25


def test_a_shorter_segment_says_why() -> None:
    trial = Trial([30] * 50, 500)
    assert trial.told(75) == (
        "Segments of 15 steps, half the median length of random episodes (30), because too few reach the "
        "usual 75 steps"
    )
    assert trial.told(20) == "Segments of 20 steps"


def test_episodes_are_early_beside_the_limit_or_beside_each_other() -> None:
    assert Trial([30, 40, 50], 50).early == 2
    assert Trial([50, 50, 50], None).early == 0
    assert Trial([30, 40, 50], None).early == 2


def test_the_usual_segment_takes_a_second_and_a_half() -> None:
    assert [usual_length(None, fps) for fps in (1, 4, 50)] == [1, 6, 75]
    assert usual_length(2.0, 30) == 60


def test_the_seed_decides_the_trial() -> None:
    trials = [try_episodes(make_env("CartPole-v1", {}), 500, seed) for seed in (3, 3, 4)]
    assert trials[0] == trials[1] != trials[2]
    assert len(trials[0].lengths) == TRIAL_EPISODES
    assert max(trials[0].lengths) < 200


@pytest.mark.parametrize(
    ("images", "length", "filling"), [(0, 9, "absorb"), (1, 9, "restart"), (1, 10, "absorb")]
)
def test_episodes_continue_when_ends_are_uninformative(images: bool, length: int, filling: str) -> None:
    assert fillings(Trial([5, length, 19], 20), images=images)[0] == filling


@pytest.mark.parametrize(
    ("env_id", "filling"),
    [
        ("CartPole-v1", "absorb"),
        ("InvertedPendulum-v5", "absorb"),
        ("FrozenLake-v1", "absorb"),
        ("Acrobot-v1", "absorb"),  # loses reward until its end
        ("LunarLanderContinuous-v3", "restart"),
    ],
)
def test_failures_that_cost_reward_are_not_shown(env_id: str, filling: str) -> None:
    limit = gym.spec(env_id).max_episode_steps
    assert fillings(try_episodes(make_env(env_id, {}), limit, 1))[0] == filling


class _Endless(gym.Env[Any, Any]):
    """Counts how far it was ever played."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    steps: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        type(self).steps += 1
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(("limit", "episodes"), [(15, TRIAL_EPISODES), (1000, TRIAL_STEPS // 1000)])
def test_a_trial_has_an_end(limit: int, episodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand steps of fifty episodes take minutes where each one draws a picture."""
    monkeypatch.setattr(_Endless, "steps", 0)
    told: list[int] = []
    assert try_episodes(_Endless(), None, 0, limit, told.append) == Trial([limit] * episodes, None)
    assert _Endless.steps == limit * episodes
    assert told == list(range(episodes + 1))

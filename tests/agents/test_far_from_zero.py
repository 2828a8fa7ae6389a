"""Observations in double precision that lie far from 0 are normalized before they are cast to single."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from agents.cloning import Pairs, clone
from agents.normalize import ObservationNormalizer
from agents.ppo import PPO, PPOConfig

OFFSETS = np.array([1e9, 0.0, -4e8])


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_observations_far_from_0_are_normalized_as_those_around_it(dtype: type) -> None:
    space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    near, far = ObservationNormalizer(space), ObservationNormalizer(space)
    around: NDArray[Any] = np.random.default_rng(0).normal(0, [1, 10, 100], (1000, 3)).round().astype(dtype)
    beyond = around + OFFSETS.astype(dtype)
    for batch in np.split(np.arange(1000), 10):
        near.update(around[batch])
        far.update(beyond[batch])
    np.testing.assert_allclose(far(beyond), near(around), rtol=0, atol=1e-5)
    assert far(beyond).dtype == np.float32


@dataclass
class Shown:
    train: Pairs
    validation: Pairs

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        yield from np.array_split(np.arange(len(self.train[0])), 16)


def test_policy_is_cloned_far_from_zero(counting_envs: Callable[..., SyncVectorEnv]) -> None:
    random, losses = np.random.default_rng(0), []
    observations = random.normal(0, [1, 10, 0.5], (512, 3)).round(3)
    actions = 0.5 * np.tanh(observations[:, :2] / [1, 10]).astype(np.float32)
    nothing: Any = observations[:0], actions[:0]
    for offsets in (np.zeros(3), OFFSETS):
        agent = PPO(counting_envs(), PPOConfig(num_steps=4), seed=1)
        losses.append(clone(agent, Shown((observations + offsets, actions), nothing), n_epochs=20)[-1].train)
    assert losses[1] < 0.01
    assert losses[1] == pytest.approx(losses[0], rel=0.01)

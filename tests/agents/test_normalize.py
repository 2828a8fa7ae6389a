"""Running statistics against NumPy over everything seen, and observations that lie far from 0."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from agents.cloning import Pairs, clone
from agents.errors import UnsupportedSpaceError
from agents.normalize import CLIP, ObservationNormalizer, RewardScaler
from agents.numerics.moments import RunningMoments
from agents.ppo import PPO, PPOConfig


def box(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float64)


@pytest.mark.parametrize("sizes", [[1000], [1, 999], [300, 0, 1, 699], [1] * 1000])
def test_statistics_equal_those_of_all_samples_in_one(sizes: list[int]) -> None:
    samples = np.random.default_rng(0).normal(50.0, [0.1, 1.0, 30.0], (1000, 3))
    statistics = RunningMoments((3,))
    for batch in np.split(samples, np.cumsum(sizes)[:-1]):
        statistics.update(batch)
    np.testing.assert_allclose(statistics.mean, samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, samples.var(0), rtol=1e-9)
    assert statistics.count == 1000


def test_single_precision_samples_far_from_zero_keep_their_variance() -> None:
    samples = np.random.default_rng(0).normal(1e4, 1.0, (10_000, 1)).astype(np.float32)
    statistics = RunningMoments((1,))
    for batch in np.split(samples, 100):
        statistics.update(batch)
    np.testing.assert_allclose(statistics.variance, samples.astype(np.float64).var(0), rtol=1e-9)


def test_before_the_first_update_observations_are_only_flattened_and_clipped() -> None:
    normalizer = ObservationNormalizer(box(2, 2))
    normalized = normalizer(np.array([[[1.0, -2.0], [3.0, 400.0]]]))
    np.testing.assert_allclose(normalized, [[1.0, -2.0, 3.0, CLIP]], rtol=1e-6)


def test_observations_become_standard_whatever_the_batch_shape() -> None:
    observations = np.random.default_rng(0).normal(7.0, 3.0, (50, 20, 2, 2))
    normalizer = ObservationNormalizer(box(2, 2))
    normalizer.update(observations.reshape(-1, 2, 2))
    normalized = normalizer(observations)
    assert normalized.shape == (50, 20, 4)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized.mean((0, 1)), 0, atol=1e-6)
    np.testing.assert_allclose(normalized.std((0, 1)), 1, atol=1e-6)


def test_observations_that_are_not_to_be_normalized_are_only_flattened() -> None:
    normalizer = ObservationNormalizer(box(2, 2), learns=False)
    normalizer.update(np.random.default_rng(0).normal(7.0, 3.0, (50, 2, 2)))
    observations = np.array([[[1.0, -2.0], [3.0, 400.0]]])
    np.testing.assert_array_equal(normalizer(observations), observations.reshape(1, 4).astype(np.float32))
    assert normalizer.statistics.count == 0


def test_statistics_that_a_policy_came_with_are_kept_as_they_were() -> None:
    learned = ObservationNormalizer(box(1))
    learned.update(np.arange(10.0)[:, None])
    normalizer = ObservationNormalizer(box(1), learns=False)
    normalizer.statistics.load_state_dict(learned.statistics.state_dict())
    normalizer.update(np.full((10, 1), 99.0))
    probe = np.array([[3.0], [4.0]])
    np.testing.assert_array_equal(normalizer(probe), learned(probe))


def test_a_constant_component_stays_finite() -> None:
    normalizer = ObservationNormalizer(box(1))
    normalizer.update(np.full((10, 1), 3.0))
    np.testing.assert_array_equal(normalizer(np.array([[3.0], [4.0]])), [[0.0], [CLIP]])


def test_a_space_that_is_no_box_is_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="space must be a non-empty Box, not Dict"):
        ObservationNormalizer(gymnasium.spaces.Dict({"position": box(2)}))


def test_a_space_of_nothing_and_a_long_one_are_refused_in_one_line() -> None:
    low = np.arange(100, dtype=np.float32)
    long = gymnasium.spaces.Tuple([gymnasium.spaces.Box(low, low + 1)])
    for space in (box(0), long):
        with pytest.raises(
            UnsupportedSpaceError,
            match=r"^The observation space must be a non-empty Box, .*; wrap the environment\.$",
        ):
            ObservationNormalizer(space)


def test_rewards_are_scaled_by_the_standard_deviation_of_returns() -> None:
    """Over two rollouts, with episodes that span them and dummy steps between episodes."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(5.0, 2.0, (60, 2))
    ended, valid = np.zeros((60, 2), bool), np.ones((60, 2), bool)
    ended[[9, 33], 0] = ended[[29, 45], 1] = True
    valid[[10, 34], 0] = valid[[30, 46], 1] = False
    rewards[~valid] = 0.0

    returns = []
    for env in range(2):
        running = 0.0
        for t in range(60):
            if valid[t, env]:
                running = 0.9 * running + rewards[t, env]
                returns.append((t, running))
            if ended[t, env]:
                running = 0.0

    scaler = RewardScaler(2, gamma=0.9)
    for part in (slice(0, 30), slice(30, 60)):
        scaled = scaler(rewards[part], ended[part], valid[part])
        deviation = np.std([value for t, value in returns if t < part.stop])
        np.testing.assert_allclose(scaled, rewards[part] / deviation, rtol=1e-7)


def test_scaled_rewards_are_clipped() -> None:
    rewards = np.zeros((1000, 1))
    rewards[50] = 1000.0
    scaled = RewardScaler(1, gamma=0.0)(rewards, np.zeros((1000, 1), bool), np.ones((1000, 1), bool))
    assert scaled.max() == CLIP


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

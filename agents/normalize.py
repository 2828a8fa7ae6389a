"""Running mean and variance, and normalization of observations and rewards."""

import math
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from agents.distributed import ALONE, Ranks
from agents.errors import UnsupportedSpaceError, one_line

CLIP = 10.0
"""Normalized observations and rewards are clipped to plus or minus this many standard deviations."""
EPSILON = 1e-8
"""Added to a variance before taking the square root."""


class RunningMeanVariance:
    """Mean and population variance of all samples seen so far, elementwise.

    Batches are merged with the parallel formula of Chan, Golub and LeVeque (1979): the result equals that of
    one pass over all samples, for any batch sizes. Before the first sample the mean is 0 and the variance 1.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self.variance: NDArray[np.float64] = np.ones(shape)
        self.count = 0

    def update(self, samples: NDArray[Any], ranks: Ranks = ALONE) -> None:
        """Add ``samples`` of shape ``(n, *shape)`` of each rank; ``n`` may differ between ranks."""
        samples, n = samples.astype(np.float64), len(samples)
        moments = np.zeros((3, *self.mean.shape))
        if n:
            moments[0], moments[1], moments[2] = n, samples.mean(axis=0), samples.var(axis=0)
        for of_one in ranks.gather(moments):
            self._merge(*of_one)

    def _merge(self, count: Any, mean: NDArray[np.float64], variance: NDArray[np.float64]) -> None:
        """Add the moments of a batch."""
        n = int(np.max(count))
        if n == 0:
            return
        total = self.count + n
        between = np.square(mean - self.mean) * self.count * n / total
        self.variance = (self.variance * self.count + variance * n + between) / total
        self.mean = self.mean + (mean - self.mean) * n / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the statistics."""
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.variance = np.array(state["variance"], dtype=np.float64)
        self.count = int(state["count"])


class ObservationPreparation(Protocol):
    """Converts raw observations to inputs of a policy.

    Attributes:
        shape: of one raw observation.
        statistics: moments of the observations so far.
    """

    shape: tuple[int, ...]
    statistics: RunningMeanVariance

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Prepare raw observations ``(*batch, *shape)``; return ``(*batch, ...)``."""

    def update(self, observations: NDArray[Any], ranks: Ranks = ALONE) -> None:
        """Add raw observations ``(n, *shape)`` of each rank to the statistics."""


class ObservationNormalizer:
    """Flattens observations and scales each component to mean 0 and variance 1, clipped to ``[-CLIP, CLIP]``.

    The statistics change only in :meth:`update`, so that all steps of a rollout, its values and its update
    use the same function.

    Args:
        space: of the observations.
        learns: update statistics; without, observations stay unscaled, unless a loaded policy came with
            statistics, which are then used unchanged.

    Raises:
        UnsupportedSpaceError: the space is not a Box, or is empty.
    """

    def __init__(self, space: gymnasium.Space[Any], *, learns: bool = True) -> None:
        if not isinstance(space, gymnasium.spaces.Box) or 0 in space.shape:
            raise UnsupportedSpaceError(
                f"Expected observations in a non-empty Box, got {one_line(space)}; wrap the environment."
            )
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.statistics = RunningMeanVariance((self.size,))
        self._learns = learns

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Normalize raw observations ``(*batch, *shape)``; return ``(*batch, size)``."""
        batch = observations.shape[: observations.ndim - len(self.shape)]
        flat = observations.reshape(*batch, self.size)
        if not self._learns and self.statistics.count == 0:
            return flat.astype(np.float32)
        normalized: NDArray[np.float64] = flat - self.statistics.mean
        normalized /= np.sqrt(self.statistics.variance + EPSILON)
        # For a few rows, as in each step of a rollout, these take a fifth of the time of np.clip.
        np.maximum(normalized, -CLIP, out=normalized)
        np.minimum(normalized, CLIP, out=normalized)
        return normalized.astype(np.float32)

    def update(self, observations: NDArray[Any], ranks: Ranks = ALONE) -> None:
        """Add raw observations ``(n, *shape)`` of each rank to the statistics, if they are updated."""
        if self._learns:
            self.statistics.update(observations.reshape(len(observations), self.size), ranks)


class RewardScaler:
    """Divides rewards by the running standard deviation of the discounted return (not centered).

    The return restarts with each episode and is carried from one rollout to the next. This is the reward half
    of VecNormalize in OpenAI Baselines and Stable-Baselines3, with statistics that change once per rollout.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.statistics = RunningMeanVariance()
        self.returns: NDArray[np.float64] = np.zeros(num_envs)

    def __call__(
        self,
        rewards: NDArray[np.float64],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        ranks: Ranks = ALONE,
    ) -> NDArray[np.float64]:
        """Add one rollout of each rank and scale it; all arrays are ``(num_steps, num_envs)``.

        Args:
            rewards: zero where not ``valid``.
            ended: True at the last step of an episode.
            valid: False at dummy transitions, which do not enter the statistics.
            ranks: processes that share the statistics.
        """
        returns = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            self.returns = self.gamma * self.returns + reward
            returns[t] = self.returns
            self.returns[ended[t]] = 0.0
        self.statistics.update(returns[valid], ranks)
        scaled: NDArray[np.float64] = rewards / np.sqrt(self.statistics.variance + EPSILON)
        return scaled.clip(-CLIP, CLIP)

    def restart(self, num_envs: int) -> None:
        """Reset the returns because all environments start a new episode."""
        self.returns = np.zeros(num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the statistics and of the running episodes' returns."""
        return {"statistics": self.statistics.state_dict(), "returns": self.returns.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.statistics.load_state_dict(state["statistics"])
        self.returns = np.array(state["returns"], dtype=np.float64)

"""Normalization of observations and rewards with running means and variances."""

import math
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from agents.distributed import ALONE, Ranks
from agents.errors import UnsupportedSpaceError, one_line
from agents.numerics.moments import RunningMoments

CLIP = 10.0
"""Normalized observations and rewards are clipped to plus or minus this many standard deviations."""
EPSILON = 1e-8
"""Added to a variance before taking the square root, to avoid division by zero."""


class ObservationPreparation(Protocol):
    """Interface for callables that convert raw observations to policy inputs."""

    shape: tuple[int, ...]
    statistics: RunningMoments

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Convert raw observations ``(*batch, *shape)`` to policy inputs ``(*batch, ...)``."""

    def update(self, observations: NDArray[Any], ranks: Ranks = ALONE) -> None:
        """Update the statistics with the raw observations ``(n, *shape)`` passed by every rank."""


class ObservationNormalizer:
    """Flattens observations, and scales each component to mean 0 and variance 1.

    Scaled components are clipped to ``[-CLIP, CLIP]``.

    The statistics change only in :meth:`update`. A rollout and the policy update on it therefore use the same
    normalization.

    Args:
        learns: True to update the statistics with training data. If False, observations are not scaled unless
            statistics were loaded with a policy; loaded statistics stay unchanged.

    Raises:
        UnsupportedSpaceError: the space is not a Box, or has zero size.
    """

    def __init__(self, space: gymnasium.Space[Any], *, learns: bool = True) -> None:
        if not isinstance(space, gymnasium.spaces.Box) or 0 in space.shape:
            raise UnsupportedSpaceError(
                f"The observation space must be a non-empty Box, not {one_line(space)}; wrap the environment."
            )
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.statistics = RunningMoments((self.size,))
        self._learns = learns

    @property
    def scales(self) -> bool:
        """Return True if observations are scaled with the statistics."""
        return self._learns or self.statistics.count > 0

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Flatten and normalize raw observations ``(*batch, *shape)``; return ``(*batch, size)``."""
        batch = observations.shape[: observations.ndim - len(self.shape)]
        flat = observations.reshape(*batch, self.size)
        if not self.scales:
            return flat.astype(np.float32)
        normalized: NDArray[np.float64] = flat - self.statistics.mean
        normalized /= np.sqrt(self.statistics.variance + EPSILON)
        # For the few rows of a rollout step, these two calls take a fifth of np.clip's time.
        np.maximum(normalized, -CLIP, out=normalized)
        np.minimum(normalized, CLIP, out=normalized)
        return normalized.astype(np.float32)

    def update(self, observations: NDArray[Any], ranks: Ranks = ALONE) -> None:
        """If ``learns``, update the statistics with the observations ``(n, *shape)`` passed by every rank."""
        if self._learns:
            self.statistics.update(observations.reshape(len(observations), self.size), ranks.gather)


class RewardScaler:
    """Divides rewards by the running standard deviation of the discounted return.

    The mean is not subtracted. Each environment's discounted return is reset to 0 at the start of an episode,
    and carried over between rollouts. This matches ``VecNormalize`` in OpenAI Baselines and
    Stable-Baselines3, except that the statistics change only once per rollout.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.statistics = RunningMoments()
        self.returns: NDArray[np.float64] = np.zeros(num_envs)

    def __call__(
        self,
        rewards: NDArray[np.float64],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        ranks: Ranks = ALONE,
    ) -> NDArray[np.float64]:
        """Update the statistics with one rollout from each rank; return this rank's scaled rewards.

        All arrays have shape ``(num_steps, num_envs)``.

        Args:
            rewards: raw rewards; must be 0 where ``valid`` is False.
            ended: True at the last step of an episode.
            valid: False at dummy transitions, which are excluded from the statistics.
        """
        returns = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            self.returns = self.gamma * self.returns + reward
            returns[t] = self.returns
            self.returns[ended[t]] = 0.0
        self.statistics.update(returns[valid], ranks.gather)
        scaled: NDArray[np.float64] = rewards / np.sqrt(self.statistics.variance + EPSILON)
        return scaled.clip(-CLIP, CLIP)

    def restart(self, num_envs: int) -> None:
        """Set the discounted returns to 0; call this when all environments start a new episode."""
        self.returns = np.zeros(num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the statistics and of the discounted returns of episodes in progress."""
        return {"statistics": self.statistics.state_dict(), "returns": self.returns.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        self.statistics.load_state_dict(state["statistics"])
        self.returns = np.array(state["returns"], dtype=np.float64)

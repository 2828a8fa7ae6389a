"""Steps of an environment as what learns from them sees them, wherever they are kept."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError

NOTHING_AFTER = (
    "expected segments with what came after their last step, got one recorded without: pass --reward.inputs "
    "state,action (RewardConfig(inputs=...) in Python), or begin a new run"
)
LARGEST = np.finfo(np.float32).max  # of numpy's type, so that half precision is compared without overflow


class Steps(Protocol):
    """Steps in arrays of the same leading dimensions ``*batch``: a segment, an episode, rows of a dataset."""

    @property
    def observations(self) -> NDArray[Any]:
        """``(*batch, *observation_shape)``, raw, each before its step."""

    @property
    def actions(self) -> NDArray[Any]:
        """``(*batch, *action_shape)``, as executed."""

    @property
    def next_observations(self) -> NDArray[Any]:
        """``(*batch, *observation_shape)``, raw, each after its step."""

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """``(*batch,)``, whether the environment ended the episode with that step."""


class StepsBatch:
    """Steps from arrays at hand, all of the same leading dimensions; see :class:`Steps`.

    Args:
        observations: before each step.
        actions: as executed.
        next_observations: after each step; None where nobody reads them.
        terminations: whether the environment ended the episode; None where nobody reads that.
        why_missing: why one of the last two is None where it was not recorded, rather than not passed.

    Raises:
        ConfigError: by the property of what was not passed.
        DataError: by the property of what was not recorded.
    """

    def __init__(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        next_observations: NDArray[Any] | None = None,
        terminations: NDArray[np.bool_] | None = None,
        *,
        why_missing: str = "",
    ) -> None:
        self.observations = observations
        self.actions = actions
        self._next_observations = next_observations
        self._terminations = terminations
        self._why_missing = why_missing

    @property
    def next_observations(self) -> NDArray[Any]:
        """After each step."""
        return self._given("next_state", "next observations", self._next_observations)

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Whether the environment ended the episode with that step."""
        return self._given("terminated", "the ends of episodes", self._terminations)

    def _given(self, name: str, what: str, array: NDArray[Any] | None) -> NDArray[Any]:
        if array is not None:
            return array
        if self._why_missing:
            raise DataError(self._why_missing)
        raise ConfigError(f"expected {what}, which a predictor with {name} among its inputs reads; pass them")


def readable_steps(episode: Trajectory) -> int:
    """Return how many steps can be learned from: all but a last one that led to what is no number.

    An environment may end an episode because its state is no number any more.
    """
    led_to_numbers = fits_float32(episode.next_observations[-1:]).all()
    return len(episode) - int(episode.finished and not led_to_numbers)


def readable_part(episode: Trajectory) -> Trajectory:
    """Return the episode without steps that cannot be learned from, as :func:`readable_steps` says."""
    steps = readable_steps(episode)
    if steps == len(episode):
        return episode
    return Trajectory.from_arrays(
        episode.all_observations[: steps + 1], episode.actions[:steps], episode.true_rewards[:steps]
    )


def require_finite(episode: Trajectory) -> None:
    """Raise :class:`DataError`, which names the step, unless all :func:`readable_steps` are of numbers."""
    steps = readable_steps(episode)
    parts = {
        "observations": episode.all_observations[: steps + 1],
        "actions": episode.actions[:steps],
        "true rewards": episode.true_rewards[:steps],
    }
    for name, part in parts.items():
        bad = np.argwhere(~fits_float32(part))
        if bad.size:
            step, found = int(bad[0, 0]), part[tuple(bad[0])]
            place = "after the last step" if step == len(episode) else f"at step {step}"
            raise DataError(f"expected finite {name} of at most {LARGEST:.1e}, got {found} {place}")


def fits_float32(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which numbers are finite, also in the precision that rewards and policies are computed in."""
    if array.dtype.kind != "f":
        return np.ones(array.shape, bool)
    fits: NDArray[np.bool_] = np.abs(array) <= LARGEST  # not so for a NaN
    return fits

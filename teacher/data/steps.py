"""Common interface for batches of environment steps, and checks for NaN and infinity."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError

NOTHING_AFTER = (
    "segments were recorded without the final observations that the reward predictor needs; pass "
    "--reward.inputs state,action (in Python: RewardConfig(inputs=...)), or start a new run"
)
LARGEST = np.finfo(np.float32).max  # a NumPy scalar; a Python float overflows in comparisons with float16


class Steps(Protocol):
    """Interface of objects that contain environment steps: segments, episodes and dataset rows.

    All arrays have the same leading dimensions ``*batch``.
    """

    @property
    def observations(self) -> NDArray[Any]:
        """Return the raw observations before each step, ``(*batch, *observation_shape)``."""

    @property
    def actions(self) -> NDArray[Any]:
        """Return the executed actions, ``(*batch, *action_shape)``."""

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return the raw observations after each step, ``(*batch, *observation_shape)``."""

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask of the steps at which the environment terminated an episode, ``(*batch,)``."""


class StepsBatch:
    """Implementation of :class:`Steps` that wraps existing arrays.

    Args:
        next_observations: observations after each step; None if not needed or never recorded.
        terminations: True where the environment terminated an episode; None if not needed or never recorded.
        why_missing: reason why ``next_observations`` or ``terminations`` were never recorded. Accessing one
            that was not passed raises DataError with this message or, if the message is empty, ConfigError.
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
        """Return the raw observations after each step, ``(*batch, *observation_shape)``."""
        return self._given("next_state", "next observations", self._next_observations)

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask of the steps at which the environment terminated an episode, ``(*batch,)``."""
        return self._given("terminated", "terminations", self._terminations)

    def _given(self, name: str, what: str, array: NDArray[Any] | None) -> NDArray[Any]:
        if array is not None:
            return array
        if self._why_missing:
            raise DataError(self._why_missing)
        raise ConfigError(f"a reward predictor with input {name} needs {what}; pass them as well")


def readable_steps(episode: Trajectory) -> int:
    """Return the number of usable steps: all, or all but the last if its next observation isn't finite.

    Some environments end an episode when their state becomes NaN or infinite.
    """
    led_to_numbers = fits_float32(episode.next_observations[-1:]).all()
    return len(episode) - int(episode.finished and not led_to_numbers)


def readable_part(episode: Trajectory) -> Trajectory:
    """Return the episode, without its final step if that step's next observation isn't finite."""
    steps = readable_steps(episode)
    if steps == len(episode):
        return episode
    return Trajectory.from_arrays(
        episode.all_observations[: steps + 1], episode.actions[:steps], episode.true_rewards[:steps]
    )


def require_finite(episode: Trajectory) -> None:
    """Raise DataError if a number in the episode's usable steps is NaN, infinite or too large for float32."""
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
            raise DataError(
                f"{name} contain {found} {place} (numbers must be finite, with magnitude at most "
                f"{LARGEST:.1e})"
            )


def fits_float32(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the numbers that stay finite when cast to float32, which all networks use."""
    if array.dtype.kind != "f":
        return np.ones(array.shape, bool)
    fits: NDArray[np.bool_] = np.abs(array) <= LARGEST  # False for NaN
    return fits

"""Environment steps as learners read them, in any storage."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError

NOTHING_AFTER = (
    "segments lack their final observations: pass --reward.inputs state,action "
    "(RewardConfig(inputs=...) in Python), or start a new run"
)
LARGEST = np.finfo(np.float32).max  # a numpy scalar, so that comparing half precision does not overflow


class Steps(Protocol):
    """Arrays of steps with the same leading dimensions ``*batch``: a segment, an episode, dataset rows."""

    @property
    def observations(self) -> NDArray[Any]:
        """Return the raw observations before each step, ``(*batch, *observation_shape)``."""

    @property
    def actions(self) -> NDArray[Any]:
        """Return the actions as executed, ``(*batch, *action_shape)``."""

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return the raw observations after each step, ``(*batch, *observation_shape)``."""

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask of the steps with which the environment ended an episode, ``(*batch,)``."""


class StepsBatch:
    """Steps from given arrays with the same leading dimensions; see :class:`Steps`.

    Args:
        observations: before each step.
        actions: as executed.
        next_observations: after each step; None if not needed.
        terminations: True where the environment ended the episode; None if not needed.
        why_missing: error message if one of the last two was not recorded, rather than not passed.

    Raises:
        ConfigError: on reading a property that was not passed.
        DataError: on reading a property that was not recorded.
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
        """Return the observations after each step."""
        return self._given("next_state", "next observations", self._next_observations)

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask of the steps with which the environment ended an episode."""
        return self._given("terminated", "the ends of episodes", self._terminations)

    def _given(self, name: str, what: str, array: NDArray[Any] | None) -> NDArray[Any]:
        if array is not None:
            return array
        if self._why_missing:
            raise DataError(self._why_missing)
        raise ConfigError(f"expected {what}, which a predictor with {name} among its inputs reads; pass them")


def readable_steps(episode: Trajectory) -> int:
    """Return how many steps can be learned from: all but a final one that led to NaN or infinity.

    Environments may end an episode because their state became NaN or infinite.
    """
    led_to_numbers = fits_float32(episode.next_observations[-1:]).all()
    return len(episode) - int(episode.finished and not led_to_numbers)


def readable_part(episode: Trajectory) -> Trajectory:
    """Return the episode without a final step that can't be learned from; see :func:`readable_steps`."""
    steps = readable_steps(episode)
    if steps == len(episode):
        return episode
    return Trajectory.from_arrays(
        episode.all_observations[: steps + 1], episode.actions[:steps], episode.true_rewards[:steps]
    )


def require_finite(episode: Trajectory) -> None:
    """Raise :class:`DataError` that names the step unless all :func:`readable_steps` are finite."""
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
    """Return a mask of the numbers that are finite in float32, in which rewards and policies are computed."""
    if array.dtype.kind != "f":
        return np.ones(array.shape, bool)
    fits: NDArray[np.bool_] = np.abs(array) <= LARGEST  # False for NaN
    return fits

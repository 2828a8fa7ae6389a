"""Trajectories: the steps of one episode, while it grows or as a whole."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError

_INITIAL_CAPACITY = 128


class Trajectory:
    """The steps of one episode, growing or whole. Its arrays are read-only views of the steps so far.

    An episode under way is up to date when :meth:`EpisodeRecorder.drain` returns it.

    Args:
        env_id: Gymnasium id of the environment.
        kwargs: further arguments of ``make_env``, JSON values only.
        seed: of the episode's reset.
        env_index: which of the vector environment's environments.
        episode_index: how many episodes this environment had before.

    Attributes:
        terminated: the environment ended the episode; None where that is not known, and then it counts as
            not ended so.
        truncated: a time limit ended it, or nobody knows what did.
        replayable: whether :meth:`recipe` plays it again.
    """

    def __init__(
        self, env_id: str, kwargs: Mapping[str, Any], seed: int, *, env_index: int = 0, episode_index: int = 0
    ) -> None:
        self.seed = seed
        self.env_index = env_index
        self.episode_index = episode_index
        self.terminated: bool | None = False
        self.truncated = False
        self.replayable = True
        self._env_id = env_id
        self._kwargs = kwargs
        self._length = 0
        # Room for these steps and more. Observations have a row more, after the last step.
        self._observations: NDArray[Any] = np.empty(0)
        self._actions: NDArray[Any] = np.empty(0)
        self._rewards: NDArray[np.float64] = np.empty(0)
        self._frames: list[bytes] = []

    @classmethod
    def from_arrays(
        cls,
        observations: NDArray[Any],
        actions: NDArray[Any],
        true_rewards: NDArray[np.float64],
        terminated: bool | None = False,
    ) -> "Trajectory":
        """Return a whole episode that cannot be played again; the arrays are not copied.

        Args:
            observations: ``(steps + 1, *observation_shape)``, before each step, and the final one.
            actions: ``(steps, *action_shape)``.
            true_rewards: ``(steps,)``; zeros where there are none.
            terminated: whether the environment ended it, rather than a time limit; None where that is not
                known.

        Raises:
            DataError: they are no arrays of numbers, or do not fit each other.
        """
        arrays = {"observations": observations, "actions": actions, "true_rewards": true_rewards}
        for name, array in arrays.items():
            _require_numbers(name, array)
        if true_rewards.ndim > 1:
            raise DataError(
                f"expected one true reward for each step, (steps,), got an array {true_rewards.shape}"
            )
        lengths = len(observations) - 1, len(actions), len(true_rewards)
        if len(set(lengths)) > 1:
            raise DataError(
                f"expected one state more than actions and true rewards, that after the last step, got "
                f"{len(observations)} states, {lengths[1]} actions and {lengths[2]} true rewards"
            )
        trajectory = cls("recorded", {}, 0)
        trajectory._observations, trajectory._actions = observations, actions
        trajectory._rewards, trajectory._length = true_rewards, len(actions)
        trajectory.terminated, trajectory.truncated = terminated, not terminated
        trajectory.replayable = False
        return trajectory

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Return what its observations and pictures take up in memory."""
        return self.observations.nbytes + sum(map(len, self._frames))

    @property
    def finished(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.terminated or self.truncated)

    @property
    def observations(self) -> NDArray[Any]:
        """``(steps, *observation_shape)``, raw, each before its step."""
        return _read_only(self._observations[: self._length])

    @property
    def next_observations(self) -> NDArray[Any]:
        """``(steps, *observation_shape)``, raw, each after its step."""
        return _read_only(self._observations[1 : self._length + 1])

    @property
    def all_observations(self) -> NDArray[Any]:
        """``(steps + 1, *observation_shape)``, raw, before each step and after the last one."""
        return _read_only(self._observations[: self._length + 1])

    @property
    def final_observation(self) -> NDArray[Any]:
        """``(*observation_shape)``, raw, after the last step so far."""
        return _read_only(self._observations[self._length, ...])

    @property
    def actions(self) -> NDArray[Any]:
        """``(steps, *action_shape)``, as executed."""
        return _read_only(self._actions[: self._length])

    @property
    def frames(self) -> Sequence[bytes] | None:
        """A picture after each step, as JPEG files; None where none were captured."""
        return self._frames or None

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """``(steps,)``, whether the environment ended the episode with that step."""
        return terminations((self._length,), bool(self.terminated))

    @property
    def true_rewards(self) -> NDArray[np.float64]:
        """``(steps,)`` of the environment's own reward."""
        return _read_only(self._rewards[: self._length])

    @property
    def true_return(self) -> float:
        """Sum of the environment's reward so far."""
        return float(self.true_rewards.sum())

    def recipe(self, upto: int | None = None) -> EpisodeRecipe:
        """Return how to play the first ``upto`` steps again, all so far by default; it shares the actions.

        That of an episode from arrays names no environment that could be made.
        """
        return EpisodeRecipe(self._env_id, self._kwargs, self.seed, self.actions[:upto])

    def extend(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        true_rewards: NDArray[np.float64],
        frames: Sequence[bytes],
    ) -> None:
        """Add steps; of observations there is one more, after the last step, and of frames perhaps none."""
        if not len(true_rewards):
            return
        start, self._length = self._length, self._length + len(true_rewards)
        if self._length > len(self._rewards):
            capacity = max(_INITIAL_CAPACITY, 2 * len(self._rewards), self._length)
            self._observations = _enlarged(self._observations[: start + 1], observations, capacity + 1)
            self._actions = _enlarged(self._actions[:start], actions, capacity)
            self._rewards = _enlarged(self._rewards[:start], true_rewards, capacity)
        self._observations[start : self._length + 1] = observations
        self._actions[start : self._length] = actions
        self._rewards[start : self._length] = true_rewards
        self._frames += frames


def terminations(shape: tuple[int, ...], terminated: bool | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return flags ``(*batch, steps)`` that say ``terminated``, ``(*batch,)``, of the last step alone."""
    flags = np.zeros(shape, np.bool_)
    flags[..., -1:] = np.asarray(terminated)[..., None]
    return flags


def _require_numbers(name: str, array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "iufb":
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(f"expected {name} as a numpy array of numbers, a row for each step, got {found}")


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _enlarged(rows: NDArray[Any], like: NDArray[Any], capacity: int) -> NDArray[Any]:
    """Return the rows in an array with room for ``capacity`` rows like those of ``like``."""
    larger = np.empty((capacity, *like.shape[1:]), like.dtype)
    if len(rows):  # else they may be of another shape
        larger[: len(rows)] = rows
    return larger

"""Trajectory of one episode, which may still be running."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.horizon import KWARG as FIXED
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError

_INITIAL_CAPACITY = 128


class Trajectory:
    """Steps of one episode, running or finished; its arrays are read-only views of the steps so far.

    A running episode lags behind its environment until :meth:`EpisodeRecorder.drain` is called.

    Args:
        episode_index: number of earlier episodes in this environment.

    Attributes:
        terminated: True if the environment ended the episode; None if unknown (treated as False).
        truncated: True if a time limit or an unknown cause ended the episode.
        succeeded: for a finished episode of an environment that reports success, whether it did so in any
            step; None for other episodes.
        absorbs: True if the episode goes on after its end, with the final observation repeated; see
            :class:`~teacher.envs.horizon.FixedHorizon`.
        replayable: True if the episode can be replayed from :meth:`recipe`.
        absorbed_steps: number of steps added by :meth:`absorb`, which the agent did not take.
    """

    def __init__(
        self, env_id: str, kwargs: Mapping[str, Any], seed: int, *, env_index: int = 0, episode_index: int = 0
    ) -> None:
        self.seed = seed
        self.env_index = env_index
        self.episode_index = episode_index
        self.terminated: bool | None = False
        self.truncated = False
        self.succeeded: bool | None = None
        self.replayable = True
        self.absorbs = kwargs.get(FIXED) == "absorb"
        self.absorbed_steps = 0
        self._env_id = env_id
        self._kwargs = kwargs
        self._length = 0
        # Buffers with room for more steps. Observations have one more row, for the final observation.
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
        """Create the trajectory of a finished episode from arrays.

        The arrays are not copied, and the episode can't be replayed. Observations that stay the same until
        the last step are taken for the end of the episode, repeated.

        Args:
            observations: ``(steps + 1, *observation_shape)``: observations before each step, and the final
                one.
            actions: ``(steps, *action_shape)``.
            true_rewards: ``(steps,)``; pass zeros if they are unknown.
            terminated: True if the environment ended the episode, False if a time limit did, None if unknown.

        Raises:
            DataError: an argument is not a numeric array, or the lengths don't match.
        """
        arrays = {"observations": observations, "actions": actions, "true_rewards": true_rewards}
        for name, array in arrays.items():
            _require_numbers(name, array)
        if true_rewards.ndim > 1:
            raise DataError(f"true_rewards must have shape (steps,), not {true_rewards.shape}")
        lengths = len(observations) - 1, len(actions), len(true_rewards)
        if len(set(lengths)) > 1:
            raise DataError(
                "there must be as many actions as true rewards, and one more observation; got "
                f"{len(observations)} observations, {lengths[1]} actions and {lengths[2]} true rewards"
            )
        trajectory = cls("recorded", {}, 0)
        trajectory._observations, trajectory._actions = observations, actions
        trajectory._rewards, trajectory._length = true_rewards, len(actions)
        trajectory.terminated, trajectory.truncated = terminated, not terminated
        trajectory.replayable, trajectory.absorbs = False, True
        return trajectory

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Return the memory used by observations and captured frames, in bytes."""
        return self.observations.nbytes + sum(map(len, self._frames))

    @property
    def finished(self) -> bool:
        """Return True if the episode has ended."""
        return bool(self.terminated or self.truncated)

    @property
    def observations(self) -> NDArray[Any]:
        """Return the raw observations before each step, ``(steps, *observation_shape)``."""
        return _read_only(self._observations[: self._length])

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return the raw observations after each step, ``(steps, *observation_shape)``."""
        return _read_only(self._observations[1 : self._length + 1])

    @property
    def all_observations(self) -> NDArray[Any]:
        """Return the raw observations including the final one, ``(steps + 1, *observation_shape)``."""
        return _read_only(self._observations[: self._length + 1])

    @property
    def final_observation(self) -> NDArray[Any]:
        """Return the raw observation after the latest step, shape ``observation_shape``."""
        return _read_only(self._observations[self._length, ...])

    @property
    def actions(self) -> NDArray[Any]:
        """Return the actions as executed, ``(steps, *action_shape)``."""
        return _read_only(self._actions[: self._length])

    @property
    def frames(self) -> Sequence[bytes] | None:
        """Return the JPEG frames captured after each step; None if no frames were captured."""
        return self._frames or None

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask ``(steps,)``: True only at the last step, and only if it terminated the episode."""
        return terminations((self._length,), bool(self.terminated))

    @property
    def true_rewards(self) -> NDArray[np.float64]:
        """Return the environment's rewards, ``(steps,)``."""
        return _read_only(self._rewards[: self._length])

    @property
    def true_return(self) -> float:
        """Return the sum of the environment's rewards so far."""
        return float(self.true_rewards.sum())

    @property
    def moving_steps(self) -> int:
        """Return the number of steps up to the last one that changed the observation."""
        before, after = self.observations, self.next_observations
        changed = (before != after).reshape(len(self), -1).any(axis=1).nonzero()[0]
        return int(changed[-1]) + 1 if changed.size else 0

    def recipe(self, upto: int | None = None) -> EpisodeRecipe:
        """Return the recipe of the first ``upto`` steps, or of all steps so far if ``upto`` is None.

        The recipe's actions are a view, not a copy. An episode from :meth:`from_arrays` can't be replayed,
        because its recipe does not name a real environment.
        """
        return EpisodeRecipe(self._env_id, self._kwargs, self.seed, self.actions[:upto])

    def extend(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        true_rewards: NDArray[np.float64],
        frames: Sequence[bytes],
    ) -> None:
        """Append steps.

        Args:
            observations: ``(n + 1, *observation_shape)``: observations before each step, and the
                one after the last step.
            actions: ``(n, *action_shape)``.
            true_rewards: ``(n,)``.
            frames: one JPEG image per step, or empty if frames are not captured.
        """
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

    def absorb(self, steps: int) -> None:
        """Extend a terminated episode like :class:`~teacher.envs.horizon.FixedHorizon`, and truncate it.

        Each step repeats the final observation, the last action and the last frame, with a reward of 0.
        """
        self.terminated, self.truncated, self.absorbed_steps = False, True, steps
        observations = np.repeat(self.final_observation[None], steps + 1, axis=0)
        actions = np.repeat(self.actions[-1:], steps, axis=0)
        self.extend(observations, actions, np.zeros(steps), self._frames[-1:] * steps)


def terminations(shape: tuple[int, ...], terminated: bool | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a boolean array that equals ``terminated`` at the last step and is False elsewhere.

    Args:
        shape: shape of the array, ``(*batch, steps)``.
        terminated: a bool, or an array of shape ``batch``.
    """
    flags = np.zeros(shape, np.bool_)
    flags[..., -1:] = np.asarray(terminated)[..., None]
    return flags


def _require_numbers(name: str, array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "iufb":
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(f"{name} must be a numeric numpy array with one row per step, not {found}")


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _enlarged(rows: NDArray[Any], like: NDArray[Any], capacity: int) -> NDArray[Any]:
    """Return a copy of ``rows`` with room for ``capacity`` rows; row shape and dtype are as in ``like``."""
    larger = np.empty((capacity, *like.shape[1:]), like.dtype)
    if len(rows):  # an empty array may have a different shape
        larger[: len(rows)] = rows
    return larger

"""Replay buffer: a ring of past transitions, in memory or in memory-mapped files."""

import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from agents.errors import StateMismatchError

_AT_ONCE = 2**24  # bytes
_FIRST_ROWS = 2**16  # rows that a new file has room for; it doubles when it is full

RewardFunction = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.bool_]], NDArray[Any]]
"""Function of observations, actions, next observations and ``terminated`` that returns rewards ``(n,)``."""


class Transitions(NamedTuple):
    """Transitions from one or more environments; all arrays share the leading dimension ``n``.

    Attributes:
        observations: raw observations before each step, ``(n, *obs)``.
        actions: actions as executed by the environment, ``(n, *act)``.
        next_observations: raw observations after each step; at the end of an episode, its final observation.
        rewards: rewards to train on, ``(n,)``.
        terminated: True if the step ended its episode in a terminal state, False for time limits, ``(n,)``.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    next_observations: NDArray[Any]
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]


class ReplayBuffer:
    """Ring of the last ``capacity`` transitions, sampled uniformly.

    Floating-point arrays are stored as float32. With a ``folder``, each column is a memory-mapped file there:
    transitions survive a killed process, a checkpoint only stores their number, and the operating system
    decides how much of them is in memory. The files grow with the number of transitions.

    Args:
        folder: folder of the memory-mapped files, created when needed; None to keep transitions in memory.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        capacity: int,
        folder: Path | None = None,
    ) -> None:
        observation, action = (
            (space.shape or (), np.float32 if np.issubdtype(space.dtype, np.floating) else space.dtype)
            for space in (observation_space, action_space)
        )
        self._formats = [observation, action, observation, ((), np.float32), ((), np.bool_)]
        self.capacity, self.folder = capacity, folder
        self.keeps_files = False
        """True to leave the files as they are: :meth:`load_state_dict` maps them copy-on-write."""
        self.added = 0
        """Number of transitions added so far, including those overwritten since."""
        self._rows = 0  # allocated; files are not touched before the first transition is added or restored
        self._columns = Transitions(*(np.empty((0, *shape), dtype) for shape, dtype in self._formats))

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def _make_room(self, needed: int) -> None:
        """Allocate at least ``needed`` rows: all in memory, but twice as many at a time in files."""
        if needed <= self._rows:
            return
        rows = needed if self.keeps_files else self._rows or min(self.capacity, _FIRST_ROWS)
        while rows < needed:
            rows = min(self.capacity, 2 * rows)
        self._rows = self.capacity if self.folder is None else rows
        if self.folder is None:
            columns = [np.empty((self.capacity, *shape), dtype) for shape, dtype in self._formats]
        else:
            if not self.keeps_files:
                self.folder.mkdir(parents=True, exist_ok=True)
            mapped = partial(np.memmap, mode="c") if self.keeps_files else _mapped
            columns = [
                mapped(self.folder / f"{name}.bin", dtype=dtype, shape=(rows, *shape))
                for name, (shape, dtype) in zip(Transitions._fields, self._formats, strict=True)
            ]
        self._columns = Transitions(*columns)

    def add(self, new: Transitions) -> None:
        """Add transitions, overwriting the oldest ones if the buffer is full.

        A process killed during this call leaves NaN as the reward of the rows it had not finished.

        Raises:
            OSError: a file can't be written, for example because the disk is full.
        """
        new = Transitions(*(column[-self.capacity :] for column in new))
        needed = min(self.capacity, self.added + len(new.rewards))
        self._make_room(needed)
        rows = (self.added + np.arange(len(new.rewards))) % self.capacity
        self._columns.rewards[rows] = np.nan
        for column, values in zip(self._columns, new, strict=True):
            if column is not self._columns.rewards:
                column[rows] = values
        self._columns.rewards[rows] = new.rewards
        self.added += len(rows)

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        """Return copies of ``size`` transitions drawn uniformly with replacement."""
        rows = rng.integers(len(self), size=size)
        return Transitions(*(column[rows] for column in self._columns))

    def relabel(self, rewards_of: RewardFunction) -> None:
        """Replace the rewards of all transitions by those of the current reward function."""
        observations, actions, following, rewards, terminated = self.transitions
        rewards[:] = rewards_of(observations, actions, following, terminated)

    @property
    def transitions(self) -> Transitions:
        """Return views of all transitions, in the order of the rows, which the next ``add`` may change."""
        return Transitions(*(column[: len(self)] for column in self._columns))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of transitions, and copies of those in memory; flush those in files."""
        if self.folder is None:
            stored = {name: array.copy() for name, array in self.transitions._asdict().items()}
            return {"added": self.added, **stored}
        for column in self._columns:
            if isinstance(column, np.memmap):
                column.flush()
        return {"added": self.added}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the transitions of :meth:`state_dict`.

        Files may have newer transitions than the state, which then replace the oldest ones of the state.

        Raises:
            StateMismatchError: transitions are missing, or have shapes of a different environment.
        """
        added = int(state["added"])
        count = min(added, self.capacity)
        if self.folder is None:
            self._load_arrays(state, count)
        else:
            self._load_files(self.folder, count)
        self.added = added

    def use_files(self) -> None:
        """Write changes to the files from now on, if the buffer has a folder and kept its files."""
        self.keeps_files = False
        if self.folder is not None and self.added:
            self._rows = 0
            self._load_files(self.folder, len(self))

    def _load_arrays(self, state: Mapping[str, Any], count: int) -> None:
        self._make_room(count)
        for name, column in self._columns._asdict().items():
            if name not in state or np.shape(state[name]) != column[:count].shape:
                raise StateMismatchError(
                    f"The saved replay buffer has no {name} of shape {column[:count].shape}; resume with the "
                    "environment and buffer_size that it was saved with."
                )
            column[:count] = state[name]

    def _load_files(self, folder: Path, count: int) -> None:
        for name, (shape, dtype) in zip(Transitions._fields, self._formats, strict=True):
            path = folder / f"{name}.bin"
            size = path.stat().st_size if path.exists() else 0
            if size < count * np.dtype(dtype).itemsize * math.prod(shape):
                raise StateMismatchError(
                    f"{path} has {size} bytes, too few for {count} transitions; restore the run's folder."
                )
        self._make_room(count)
        torn = np.flatnonzero(np.isnan(self._columns.rewards[:count]))
        whole = np.flatnonzero(~np.isnan(self._columns.rewards[:count]))
        if len(torn) and not len(whole):
            raise StateMismatchError(f"{folder} has no finished transitions; restore the run's folder.")
        for column in self._columns:
            column[torn] = column[np.resize(whole, len(torn))]


def _reserve(file: IO[bytes], size: int) -> None:
    """Extend a file to ``size`` bytes that are reserved on disk.

    Without the reservation a full disk would end the process with SIGBUS at some later write.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # macOS
        for start in range(file.seek(0, os.SEEK_END), size, _AT_ONCE):
            file.write(bytes(min(_AT_ONCE, size - start)))


def _mapped(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Map a file of at least this shape, reserving its space on disk first."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with path.open("r+b" if path.exists() else "w+b") as file:
        if os.fstat(file.fileno()).st_size < size:
            _reserve(file, size)
    return np.memmap(path, dtype, "r+", shape=shape)

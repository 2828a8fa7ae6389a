"""What a reward model reads of steps, as flat numbers."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError, one_line
from teacher.options import INPUTS
from teacher.steps import Steps

Space = spaces.Space[Any]


@dataclass(frozen=True, eq=False)
class Transitions:
    """Steps from arrays at hand; what is None raises :class:`ConfigError` where it is read."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    after: NDArray[Any] | None = None
    terminated: NDArray[np.bool_] | None = None

    @property
    def next_observations(self) -> NDArray[Any]:
        """See :class:`Steps`."""
        return _given("next_state", "next observations", self.after)

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """See :class:`Steps`."""
        return _given("terminated", "the ends of episodes", self.terminated)


def _given(name: str, what: str, array: NDArray[Any] | None) -> NDArray[Any]:
    if array is None:
        raise ConfigError(f"expected {what}, which a predictor with {name} among its inputs reads; pass them")
    return array


class Reader(Protocol):
    """Turns steps into what a network's ``standardise`` takes."""

    @property
    def inputs(self) -> frozenset[str]:
        """Which of ``INPUTS`` it reads; what is not among them is never asked for."""

    @property
    def bytes_per_step(self) -> int:
        """How much memory the result takes."""

    def __call__(self, steps: Steps) -> Tensor:
        """``(*batch, ...)``, on the CPU, in memory of its own.

        Raises:
            DataError: the steps are not of the reader's environment.
        """


class Features:
    """Turns batches of raw steps into float32 vectors, of one or more parts in the order of ``INPUTS``.

    Boxes are flattened, discrete values become one-hot vectors (several of them one beside the other), ends
    of episodes 0 and 1.

    Args:
        observation_space: of one environment.
        action_space: of one environment.
        inputs: which of ``INPUTS`` to read, joined by commas; None: ``state,action``.

    Attributes:
        size: of a vector.
        columns: where each input is in it.

    Raises:
        EnvironmentUnsuitableError: a space is neither Box, Discrete nor MultiDiscrete.
    """

    def __init__(self, observation_space: Space, action_space: Space, inputs: str | None) -> None:
        self.inputs = frozenset((inputs or "state,action").split(","))
        states, actions = _Vectors("observations", observation_space), _Vectors("actions", action_space)
        readers: dict[str, tuple[int, Callable[[Steps], NDArray[Any]]]] = {
            "state": (states.size, lambda steps: states(steps.observations)),
            "action": (actions.size, lambda steps: actions(steps.actions)),
            "next_state": (states.size, lambda steps: states(steps.next_observations)),
            "terminated": (1, lambda steps: np.asarray(steps.terminations)[..., None]),
        }
        read = {name: readers[name] for name in INPUTS if name in self.inputs}
        ends = list(itertools.accumulate(size for size, _ in read.values()))
        self.columns = {name: slice(end - read[name][0], end) for name, end in zip(read, ends, strict=True)}
        self.size = ends[-1]
        self.bytes_per_step = self.size * np.dtype(np.float32).itemsize
        self._readers = [reader for _, reader in read.values()]

    def __call__(self, steps: Steps) -> Tensor:
        """``(*batch, size)``; see :class:`Reader`."""
        parts = [reader(steps) for reader in self._readers]
        with np.errstate(over="ignore"):  # the network limits its inputs
            return torch.from_numpy(np.concatenate(parts, axis=-1, dtype=np.float32, casting="same_kind"))


class _Vectors:
    """Arrays of one space as vectors."""

    def __init__(self, what: str, space: Space) -> None:
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
            raise EnvironmentUnsuitableError(
                "expected a Box, Discrete or MultiDiscrete space for the predictor, got "
                f"{one_line(space)}; wrap it"
            )
        self._what = what
        self._space = space
        self._shape: tuple[int, ...] = space.shape or ()
        self._counts = _counts(space)
        self.size = int(self._counts.sum())

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        array = np.asarray(array)
        batch = array.shape[: array.ndim - len(self._shape)]
        if array.shape[len(batch) :] != self._shape:
            raise self._refusal(f"shape {array.shape}")
        if isinstance(self._space, spaces.Box):
            return array.reshape(*batch, self.size)
        indices = (array - self._space.start).reshape(*batch, len(self._counts))
        if not ((indices >= 0) & (indices < self._counts)).all():
            raise self._refusal(f"{array.min()} to {array.max()}")
        one_hot = [indices[..., [i]] == np.arange(count) for i, count in enumerate(self._counts)]
        return np.concatenate(one_hot, axis=-1)

    def _refusal(self, found: str) -> DataError:
        return DataError(
            f"expected {self._what} of {one_line(self._space)}, got {found}; use data of the environment"
        )


def _counts(space: spaces.Box | spaces.Discrete | spaces.MultiDiscrete) -> NDArray[np.int64]:
    """How many features each number of a space becomes, ``(numbers,)``."""
    match space:
        case spaces.Discrete():
            return np.array([space.n], np.int64)
        case spaces.MultiDiscrete():
            return space.nvec.ravel().astype(np.int64)
    return np.ones(math.prod(space.shape), np.int64)

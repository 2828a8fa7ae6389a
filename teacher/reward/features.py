"""Flat feature vectors that a reward model reads from steps."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from teacher.data.columns import Column
from teacher.data.precision import SMALLEST_STD, Spread
from teacher.data.preferences import PreferenceDataset
from teacher.data.steps import Steps
from teacher.errors import DataError, EnvironmentUnsuitableError, one_line, pluralize
from teacher.settings.options import INPUTS

Space = spaces.Space[Any]

_SINGLE = np.dtype(np.float32)
_EXACT_IN_SINGLE = 2  # bytes; integers up to this size are exact in float32
_BLURRED = 4  # float spacings per standard deviation; below this, hardly anything can be learned


class Reader(Protocol):
    """Turns steps into what a network's ``standardize`` takes.

    Attributes:
        doubt: why a predictor can't tell the steps of the last labels apart; empty if it can.
    """

    doubt: str

    @property
    def inputs(self) -> frozenset[str]:
        """Return which of ``INPUTS`` are read; the others are never needed."""

    @property
    def bytes_per_step(self) -> int:
        """Return how much memory one step's result takes."""

    def __call__(self, steps: Steps) -> Tensor:
        """Return the inputs ``(*batch, ...)``, on the CPU, in newly allocated memory.

        Raises:
            DataError: the steps are not from the reader's environment.
        """

    def center_on(self, dataset: PreferenceDataset) -> Tensor | None:
        """Prepare to read these preferences.

        Returns:
            ``(size,)``, the change in what is subtracted from each number; None if nothing changes.
        """

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return the centers that are subtracted; empty if there are none."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`. Raise ValueError if it is from another environment."""


class Features:
    """Turns batches of raw steps into float32 vectors: one or more inputs, in the order of ``INPUTS``.

    Boxes are flattened, discrete values become (concatenated) one-hot vectors, and ``terminated`` becomes 0
    or 1. Numbers too far from 0 for float32 are centered before the cast; see :meth:`center_on`.

    Args:
        observation_space: of one environment.
        action_space: of one environment.
        inputs: which of ``INPUTS`` to read, separated by commas; None: ``state,action``.

    Attributes:
        size: length of a vector.
        columns: the slice of the vector that holds each input.

    Raises:
        EnvironmentUnsuitableError: a space is neither Box, Discrete nor MultiDiscrete.
    """

    def __init__(self, observation_space: Space, action_space: Space, inputs: str | None) -> None:
        self.inputs = frozenset((inputs or "state,action").split(","))
        states, actions = _Vectors("observations", observation_space), _Vectors("actions", action_space)
        sources = {"state": states, "action": actions, "next_state": states}
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
        self._sources = {name: source for name, source in sources.items() if name in self.inputs}
        self.doubt = ""

    def __call__(self, steps: Steps) -> Tensor:
        """Return the vectors, ``(*batch, size)``."""
        parts = [reader(steps) for reader in self._readers]
        with np.errstate(over="ignore"):  # the network limits its inputs
            return torch.from_numpy(np.concatenate(parts, axis=-1, dtype=np.float32, casting="same_kind"))

    def center_on(self, dataset: PreferenceDataset) -> Tensor | None:
        """Center, in double precision, the numbers that float32 could not resolve; see :class:`Reader`.

        A center moves only if the centered values are too far from 0 again, as with a running clock.
        """
        before = self._center()
        sources = list({source.what: source for source in self._sources.values()}.values())
        doubts = [source.center_on(dataset.columns[source.what]) for source in sources]
        if "terminated" not in self.inputs and not any(source.varies for source in sources):
            doubts.append(
                f"no predictor input varies by more than {SMALLEST_STD:g} across the labeled segments, "
                "so the labels can teach it nothing; scale the observations, or choose other inputs (inputs)"
            )
        self.doubt = next(filter(None, doubts), "")
        moved = self._center() - before
        return torch.from_numpy(moved) if moved.any() else None

    def _center(self) -> NDArray[np.float64]:
        center = np.zeros(self.size)
        for name, source in self._sources.items():
            center[self.columns[name]] = source.center
        return center

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """See :class:`Reader`."""
        return {source.what: source.center for source in self._sources.values() if source.center.any()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`Reader`."""
        for source in self._sources.values():
            center = np.asarray(state.get(source.what, np.zeros(source.size)), np.float64)
            if center.shape != (source.size,) or not np.isfinite(center).all():
                raise ValueError(f"expected the center of {source.size} {source.what}, got {center.shape}")
            source.center = center


def why_not_finite(features: Tensor) -> str:
    """Return the error message for steps whose predicted rewards are NaN or infinite."""
    if bool(features.isfinite().all()):
        return (
            "expected finite rewards, got NaN or infinity from finite inputs: the steps are too far from "
            "those that the predictor was fitted to, or its parameters are damaged; fit it again"
        )
    return (
        "expected finite inputs to predict rewards from, got NaN or infinity among the observations or "
        "actions; fix the environment, or whatever produces its observations"
    )


class _Vectors:
    """Vectors from arrays of one space.

    Attributes:
        what: name of the arrays, ``observations`` or ``actions``.
        size: length of a vector.
        center: ``(size,)``, subtracted in double precision from the numbers of a Box.
        varies: True if the numbers varied among the last preferences.
    """

    def __init__(self, what: str, space: Space) -> None:
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
            raise EnvironmentUnsuitableError(
                "expected a Box, Discrete or MultiDiscrete space for the predictor, got "
                f"{one_line(space)}; wrap the environment"
            )
        self.what = what
        self._space = space
        self._shape: tuple[int, ...] = space.shape or ()
        self._counts = _counts(space)
        self.size = int(self._counts.sum())
        self.center = np.zeros(self.size)
        self.varies = True

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        array = np.asarray(array)
        batch = array.shape[: array.ndim - len(self._shape)]
        if array.shape[len(batch) :] != self._shape:
            raise self._refusal(f"shape {array.shape}")
        if isinstance(self._space, spaces.Box):
            flat: NDArray[Any] = array.reshape(*batch, self.size)
            return flat - self.center if self.center.any() else flat
        indices = (array - self._space.start).reshape(*batch, len(self._counts))
        if not ((indices >= 0) & (indices < self._counts)).all():
            raise self._refusal(f"{array.min()} to {array.max()}")
        one_hot = [indices[..., [i]] == np.arange(count) for i, count in enumerate(self._counts)]
        return np.concatenate(one_hot, axis=-1)

    def center_on(self, column: Column) -> str:
        """Move the center if needed; return what can't be told apart even then, as a message or ''."""
        spread = Spread.of(column.all_parts(), self._shape or (1,))
        self.varies = bool(spread.varies.any())
        dtype = column.rows.dtype
        if not isinstance(self._space, spaces.Box):
            return ""
        mean, center = spread.mean.ravel(), self.center
        if dtype.itemsize > (_SINGLE.itemsize if dtype.kind == "f" else _EXACT_IN_SINGLE):
            is_far = spread.is_coarse(_SINGLE, center=center.reshape(spread.mean.shape)).ravel()
            self.center = np.where(is_far, mean, center)
        return self._doubt(spread, dtype) if dtype.kind == "f" else ""

    def _doubt(self, spread: Spread, dtype: np.dtype[Any]) -> str:
        blurred = np.flatnonzero(spread.is_coarse(dtype, _BLURRED))
        if blurred.size == 0:
            return ""
        first = int(blurred[0])
        mean, std, spacing = (array.flat[first] for array in (spread.mean, spread.std, spread.spacing(dtype)))
        others = f" ({pluralize(blurred.size, 'component')} in all)" if blurred.size > 1 else ""
        remedy = "pass float64, or subtract" if dtype == _SINGLE else "subtract"
        return (
            f"component {first} of the {self.what} is about {mean:.3g} with standard deviation {std:.3g} "
            f"in the labeled segments, and {dtype} resolves only {spacing:.2g} there, so the predictor can "
            f"hardly tell steps apart by it{others}; {remedy} what the values have in common"
        )

    def _refusal(self, found: str) -> DataError:
        return DataError(
            f"expected {self.what} of {one_line(self._space)}, got {found}; use data from this environment"
        )


def _counts(space: spaces.Box | spaces.Discrete | spaces.MultiDiscrete) -> NDArray[np.int64]:
    """Return how many features each number of a space becomes, ``(numbers,)``."""
    match space:
        case spaces.Discrete():
            return np.array([space.n], np.int64)
        case spaces.MultiDiscrete():
            return space.nvec.ravel().astype(np.int64)
    return np.ones(math.prod(space.shape), np.int64)

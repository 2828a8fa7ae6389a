"""Conversion of steps to the flat feature vectors that reward models take as input."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from agents.numerics.moments import SMALLEST_STD, RunningMoments
from teacher.data.columns import Column
from teacher.data.preferences import PreferenceDataset
from teacher.data.steps import Steps
from teacher.errors import DataError, EnvironmentUnsuitableError, one_line, pluralize
from teacher.reward.images import Images
from teacher.settings.options import INPUTS

Space = spaces.Space[Any]

_SINGLE = np.dtype(np.float32)
_EXACT_IN_SINGLE = 2  # bytes; float32 represents integer types up to this size exactly
_MIN_SPACINGS = 4  # float spacings per standard deviation; with fewer, rounding hides the variation
_ENOUGH_SPACINGS = 100  # the same, for numbers that are stored without a center


class Features:
    """Converts batches of raw steps to float32 vectors that concatenate the chosen inputs.

    Inputs are concatenated in the order of ``INPUTS``. Box values are flattened, discrete values are one-hot
    encoded, and ``terminated`` becomes 0 or 1. ``absorbing`` is 1 if the step did not change the observation;
    in episodes extended by :class:`~teacher.envs.horizon.FixedHorizon`, it distinguishes repetitions of the
    final observation from the step that led to it. If values are so large that float32 can't resolve their
    variation, they are centered before the conversion; see :meth:`center_on`.

    Args:
        inputs: names from ``INPUTS``, separated by commas; None means ``state,action``.

    Attributes:
        inputs: parts of a step that features are computed from, such as ``state``.
        columns: slice of the feature vector for each input, keyed by input name; empty for images.
        doubt: warning that the features are nearly constant across the labeled steps, or rounded too coarsely
            to distinguish the steps; otherwise an empty string.

    Raises:
        EnvironmentUnsuitableError: a space is not Box, Discrete or MultiDiscrete.
    """

    def __init__(self, observation_space: Space, action_space: Space, inputs: str | None) -> None:
        chosen = frozenset((inputs or "state,action").split(","))
        self.inputs = chosen - {"absorbing"} | ({"state", "next_state"} if "absorbing" in chosen else set())
        states, actions = _Vectors("observations", observation_space), _Vectors("actions", action_space)
        sources = {"state": states, "action": actions, "next_state": states}
        readers: dict[str, tuple[int, Callable[[Steps], NDArray[Any]]]] = {
            "state": (states.size, lambda steps: states(steps.observations)),
            "action": (actions.size, lambda steps: actions(steps.actions)),
            "next_state": (states.size, lambda steps: states(steps.next_observations)),
            "absorbing": (1, lambda steps: states.unchanged(steps)[..., None]),
            "terminated": (1, lambda steps: np.asarray(steps.terminations)[..., None]),
        }
        read = {name: readers[name] for name in INPUTS if name in chosen}
        ends = list(itertools.accumulate(size for size, _ in read.values()))
        self.columns: Mapping[str, slice] = {
            name: slice(end - read[name][0], end) for name, end in zip(read, ends, strict=True)
        }
        self.size = ends[-1]
        self.bytes_per_step = self.size * np.dtype(np.float32).itemsize
        self._readers = [reader for _, reader in read.values()]
        self._sources = {name: source for name, source in sources.items() if name in chosen}
        self.doubt = ""

    def __call__(self, steps: Steps) -> Tensor:
        """Convert steps to feature vectors ``(*batch, size)``."""
        parts = [reader(steps) for reader in self._readers]
        with np.errstate(over="ignore"):  # networks clip their inputs
            return torch.from_numpy(np.concatenate(parts, axis=-1, dtype=np.float32, casting="same_kind"))

    def center_on(self, dataset: PreferenceDataset) -> Tensor | None:
        """Update :attr:`doubt` and the centers of values too large in magnitude for float32 precision.

        Once set, a center changes only if the centered values drift too far from 0, as timestamps do. Return
        the change in each feature's center, ``(size,)``; None if no center changed.
        """
        before = self._center()
        sources = list({source.what: source for source in self._sources.values()}.values())
        doubts = [source.center_on(dataset.columns[source.what]) for source in sources]
        if self.columns.keys() <= self._sources.keys() and not any(source.varies for source in sources):
            doubts.append(
                f"no predictor input varies by more than {SMALLEST_STD:g} across the labeled segments, "
                "so the predictor can't learn from their labels; scale the observations, or change the "
                "predictor's inputs setting"
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
        """Return the centers, keyed by ``observations`` or ``actions``; empty if nothing is centered."""
        return {source.what: source.center for source in self._sources.values() if source.center.any()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the centers returned by :meth:`state_dict`; centers not in ``state`` become 0.

        Raises:
            ValueError: a center has the wrong size or is not finite.
        """
        for source in self._sources.values():
            center = np.asarray(state.get(source.what, np.zeros(source.size)), np.float64)
            if center.shape != (source.size,) or not np.isfinite(center).all():
                raise ValueError(
                    f"the saved center of the {source.what} must have {source.size} finite numbers, but has "
                    f"shape {center.shape} or contains NaN or infinity"
                )
            source.center = center


Reader = Features | Images
"""Converts steps to features ``(*batch, ...)`` in a new CPU tensor, which a network then standardizes."""


def why_not_finite(features: Tensor) -> str:
    """Return an error message that explains why rewards predicted from ``features`` are not finite."""
    if bool(features.isfinite().all()):
        return (
            "predicted rewards are NaN or infinite although observations and actions are finite: the steps "
            "differ too much from those that the predictor was fitted to, or its parameters are damaged; fit "
            "the predictor again"
        )
    return (
        "can't predict rewards: the observations or actions contain NaN or infinity; fix the environment or "
        "the wrapper that produces them"
    )


class _Vectors:
    """Converts either observations or actions to feature vectors.

    Attributes:
        what: ``observations`` or ``actions``; used in messages and as the key of saved centers.
        center: ``(size,)``, subtracted from Box values in double precision.
        varies: True if any value varies across the dataset last passed to :meth:`center_on`.
    """

    def __init__(self, what: str, space: Space) -> None:
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
            raise EnvironmentUnsuitableError(
                f"the predictor needs a Box, Discrete or MultiDiscrete space for {what}, not "
                f"{one_line(space)}; convert the space with an environment wrapper"
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
            raise self._refusal(f"values from {array.min()} to {array.max()}")
        one_hot = [indices[..., [i]] == np.arange(count) for i, count in enumerate(self._counts)]
        return np.concatenate(one_hot, axis=-1)

    def unchanged(self, steps: Steps) -> NDArray[np.bool_]:
        """Return a mask of the steps that did not change the observation, ``(*batch,)``."""
        before, after = np.asarray(steps.observations), np.asarray(steps.next_observations)
        axes = tuple(range(before.ndim - len(self._shape), before.ndim))
        same: NDArray[np.bool_] = (before == after).all(axis=axes)
        return same

    def center_on(self, column: Column) -> str:
        """Update the center from a dataset column.

        Returns:
            A warning if the column's dtype has too little precision to resolve how the values vary, else ''.
        """
        moments = RunningMoments((math.prod(self._shape),))
        for part in column.all_parts():
            moments.update(part.reshape(-1, *moments.mean.shape))
        self.varies = bool((moments.std > SMALLEST_STD).any())
        dtype = column.rows.dtype
        if not isinstance(self._space, spaces.Box):
            return ""
        if dtype.itemsize > (_SINGLE.itemsize if dtype.kind == "f" else _EXACT_IN_SINGLE):
            is_far = _is_coarse(_spacing(moments.mean - self.center, _SINGLE), moments.std, _ENOUGH_SPACINGS)
            self.center = np.where(is_far, moments.mean, self.center)
        return self._doubt(moments, dtype) if dtype.kind == "f" else ""

    def _doubt(self, moments: RunningMoments, dtype: np.dtype[Any]) -> str:
        spacings = _spacing(moments.mean, dtype)
        blurred = np.flatnonzero(_is_coarse(spacings, moments.std, _MIN_SPACINGS))
        if blurred.size == 0:
            return ""
        first = int(blurred[0])
        mean, std, spacing = (float(array[first]) for array in (moments.mean, moments.std, spacings))
        others = f" ({pluralize(blurred.size, 'component')} are affected)" if blurred.size > 1 else ""
        remedy = "pass float64, or subtract" if dtype == _SINGLE else "subtract"
        return (
            f"component {first} of the {self.what} has mean {mean:.3g} and standard deviation {std:.3g} in "
            f"the labeled segments, but {dtype} values of this size are {spacing:.2g} apart, so the "
            f"predictor can hardly tell steps apart by this component{others}; {remedy} a constant near the "
            "mean"
        )

    def _refusal(self, found: str) -> DataError:
        return DataError(
            f"the {self.what} must belong to the space {one_line(self._space)}, but have {found}; use data "
            "from the predictor's environment"
        )


def _spacing(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Return the distance between adjacent numbers of ``dtype`` near each value."""
    spacing: NDArray[np.float64] = np.abs(values) * float(np.finfo(dtype).eps)
    return spacing


def _is_coarse(spacing: NDArray[np.float64], std: NDArray[np.float64], spacings: float) -> NDArray[np.bool_]:
    """Return a mask of the values with fewer than ``spacings`` distinct numbers in a standard deviation.

    Where the standard deviation is almost 0, numbers must be at most 1 apart, because a larger spacing may
    hide variation.
    """
    coarse: NDArray[np.bool_] = spacing > np.where(std > SMALLEST_STD, std / spacings, 1.0)
    return coarse


def _counts(space: spaces.Box | spaces.Discrete | spaces.MultiDiscrete) -> NDArray[np.int64]:
    match space:
        case spaces.Discrete():
            return np.array([space.n], np.int64)
        case spaces.MultiDiscrete():
            return space.nvec.ravel().astype(np.int64)
    return np.ones(math.prod(space.shape), np.int64)

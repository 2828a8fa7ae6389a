"""Preferences: what the reward predictor is trained on, and the growing set of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.errors import DataError
from teacher.segments import Segment

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_MAX_POISSON_WEIGHT = 12  # P(Poisson(1) > 12) is 6e-11


@dataclass(frozen=True, eq=False)
class Preference:
    """The training target that a comparison's decision gives.

    Attributes:
        uuid: of the comparison.
        first: one segment.
        second: the other.
        value: probability that ``first`` is the better one: 1.0, 0.0, 0.5 for equal; None where there is no
            target (undone, or nobody can tell), which takes the comparison out of the dataset.
    """

    uuid: UUID
    first: Segment
    second: Segment
    value: float | None


def bootstrap_weights(ids: NDArray[np.uint64], members: int) -> NDArray[np.float32]:
    """How often each preference counts in each member's bootstrap sample: Poisson(1), fixed by its UUID.

    A weight of 0 (probability 1/e) holds the preference out of that member for good. Since nothing but the
    UUID and the member's index decides, neither a later fit nor another process turns a held-out preference
    into a training one. The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).

    Args:
        ids: ``(n, 2)``, the upper and lower halves of the UUIDs.
        members: how many ensemble members.

    Returns:
        ``(members, n)`` whole numbers.
    """
    salt = _GOLDEN * np.arange(1, members + 1, dtype=np.uint64)[:, None]
    hashed = _mix(_mix(ids[:, 0] ^ salt) ^ ids[:, 1])
    uniform = hashed.astype(np.float64) / 2.0**64
    mass = np.exp(-1.0) / np.cumprod([1.0, *range(1, _MAX_POISSON_WEIGHT + 1)])
    return np.searchsorted(np.cumsum(mass), uniform, side="right").astype(np.float32)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + _GOLDEN  # array arithmetic on uint64 wraps around, as intended
    value = (value ^ (value >> np.uint64(30))) * _MIX[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX[1]
    return value ^ (value >> np.uint64(31))


class PreferenceDataset:
    """All preferences that count now, as arrays that grow in place; one row per comparison.

    Segments are copied in, so the dataset keeps no episode alive. Floating-point observations and actions are
    stored as float32, others as they are.
    """

    def __init__(self) -> None:
        self._rows: dict[UUID, int] = {}
        self._uuids: list[UUID] = []
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._uuids)

    def __contains__(self, uuid: UUID) -> bool:
        return uuid in self._rows

    @property
    def observations(self) -> NDArray[Any]:
        """``(n, 2, length, *observation_shape)``, the first segment before the second."""
        return self._column("observations")

    @property
    def actions(self) -> NDArray[Any]:
        """``(n, 2, length, *action_shape)``."""
        return self._column("actions")

    @property
    def values(self) -> NDArray[np.float32]:
        """``(n,)``, the probability that the first is preferred."""
        return self._column("values")

    @property
    def ids(self) -> NDArray[np.uint64]:
        """``(n, 2)``, the halves of each UUID."""
        return self._column("ids")

    def upsert(self, preferences: Iterable[Preference]) -> int:
        """Add new preferences, change revised ones, drop those whose value is None.

        Returns:
            How many preferences were added, changed or dropped.

        Raises:
            DataError: a segment's shape differs from those already here.
        """
        return sum(self._upsert(preference) for preference in preferences)

    def _upsert(self, preference: Preference) -> bool:
        row = self._rows.get(preference.uuid)
        if preference.value is None:
            if row is not None:
                self._drop(row)
            return row is not None
        if row is not None:
            changed = bool(self.values[row] != np.float32(preference.value))
            self.values[row] = preference.value
            return changed
        self._append(preference, preference.value)
        return True

    def _append(self, preference: Preference, value: float) -> None:
        pair = (preference.first, preference.second)
        number = preference.uuid.int
        entries = {
            "observations": np.stack([_compact(segment.observations) for segment in _alike(pair)]),
            "actions": np.stack([_compact(segment.actions) for segment in pair]),
            "values": np.array(value, np.float32),
            "ids": np.array([number >> 64, number & (2**64 - 1)], np.uint64),
        }
        row = len(self)
        for name, entry in entries.items():
            column = self._columns.get(name)
            if column is None:
                column = np.empty((64, *entry.shape), entry.dtype)
            if column.shape[1:] != entry.shape:
                raise DataError(
                    f"comparison {preference.uuid} has {name} of shape {entry.shape}, the others have "
                    f"{column.shape[1:]}; all segments of a run have one length and one environment"
                )
            if row == len(column):
                column = np.concatenate([column, np.empty_like(column)])
            column[row] = entry
            self._columns[name] = column
        self._rows[preference.uuid] = row
        self._uuids.append(preference.uuid)

    def _drop(self, row: int) -> None:
        """Remove a row by moving the last one into its place."""
        last = len(self) - 1
        for column in self._columns.values():
            column[row] = column[last]
        del self._rows[self._uuids[row]]
        moved = self._uuids.pop()
        if row != last:
            self._uuids[row] = moved
            self._rows[moved] = row

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise DataError("the dataset holds no preference yet; wait for the first answer")
        return self._columns[name][: len(self)]


def _alike(pair: tuple[Segment, Segment]) -> tuple[Segment, Segment]:
    first, second = pair
    if first.observations.shape != second.observations.shape or first.actions.shape != second.actions.shape:
        raise DataError(
            f"a comparison's segments differ in shape: {first.observations.shape} and "
            f"{second.observations.shape}; both must come from one environment and have one length"
        )
    return pair


def _compact(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype.kind == "f" else array

"""Preferences, the training targets of the reward predictor, and the growing dataset of them."""

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.data.columns import Column, ids_of, uuids_of
from teacher.data.precision import FINE, Spread
from teacher.data.segments import Segment
from teacher.data.steps import NOTHING_AFTER, StepsBatch
from teacher.envs.families import same_environment
from teacher.envs.trajectory import terminations
from teacher.errors import DataError, one_line
from teacher.settings.checks import COUNT, NOT_NEGATIVE, Fits, whole_number

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SIZE = Fits("1 or more, or None to keep all", COUNT.holds)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_MEASURED = ("observations", "actions")
_MAX_POISSON_WEIGHT = 12  # P(Poisson(1) > 12) is 6e-11


@dataclass(frozen=True, eq=False)
class Preference:
    """Training target from a comparison's decision.

    Attributes:
        uuid: of the comparison.
        first: one segment.
        second: the other.
        value: probability that ``first`` is better: 1.0, 0.0, or 0.5 for equal; None without a target
            (undone, or "can't tell"), which removes the comparison from the dataset.

    Raises:
        DataError: an attribute has the wrong type.
    """

    uuid: UUID
    first: Segment
    second: Segment
    value: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, UUID):
            raise DataError(
                f"expected a UUID as a comparison's uuid, such as uuid.uuid4(), got {_shown(self.uuid)}"
            )
        for name in ("first", "second"):
            if not isinstance(found := getattr(self, name), Segment):
                raise DataError(
                    f"comparison {self.uuid}: expected a Segment as its {name}, got {type(found).__name__}; "
                    "cut episodes into segments with a SegmentPool"
                )
        if self.value is not None and not isinstance(self.value, numbers.Real | np.bool_):
            raise _no_probability(self)


def bootstrap_weights(ids: NDArray[np.uint64], members: int) -> NDArray[np.float32]:
    """Return each preference's weight in a member's bootstrap sample: Poisson(1), determined by its UUID.

    A weight of 0 (probability 1/e) holds the preference out of that member permanently: since only the UUID
    and the member's index matter, no later fit or other process turns it into a training preference. The hash
    is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).

    Args:
        ids: ``(n, 2)``, the upper and lower halves of the UUIDs.
        members: number of ensemble members.

    Returns:
        ``(members, n)`` whole numbers.

    Raises:
        ConfigError: ``members`` is not an integer of 1 or more.
    """
    members = whole_number(members, "members", COUNT)
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
    """All current preferences as arrays that grow in place; one row per comparison.

    Segments are copied, so the dataset keeps no episode alive; a large one is stored on disk (see
    :class:`Column`). Floating-point observations and actions are stored as float32, or as float64 while some
    of them are too far from 0 for float32; other types are stored unchanged.

    Args:
        max_size: maximum number of preferences; those decided earliest are dropped first.

    Attributes:
        env_id: environment of all segments; None while empty or if unknown.

    Raises:
        ConfigError: ``max_size`` is not an integer of 1 or more.
    """

    def __init__(self, max_size: int | None = None) -> None:
        self.env_id: str | None = None
        self._rows: dict[UUID, int] = {}  # in order of decision
        self._uuids: list[UUID] = []
        self._columns: dict[str, Column] = {}
        self._spreads: dict[str, Spread] = {}  # of columns that arrived in double precision
        self.max_size = max_size

    @classmethod
    def of_columns(cls, env_id: str | None, columns: Mapping[str, Column]) -> "PreferenceDataset":
        """Make a dataset from :attr:`columns`, in order of decision, without copying them."""
        dataset = cls()
        dataset.env_id = env_id
        dataset._columns = dict(columns)
        dataset._uuids = uuids_of(columns["ids"].rows)
        dataset._rows = {uuid: row for row, uuid in enumerate(dataset._uuids)}
        return dataset

    @property
    def max_size(self) -> int | None:
        """Maximum number of preferences; None: no limit. Setting it drops any excess at once."""
        return self._max_size

    @max_size.setter
    def max_size(self, size: int | None) -> None:
        self._max_size = None if size is None else whole_number(size, "max_size", _SIZE)
        self._trim()

    def __len__(self) -> int:
        return len(self._uuids)

    def __contains__(self, uuid: UUID) -> bool:
        return uuid in self._rows

    @property
    def columns(self) -> Mapping[str, Column]:
        """Return the stored columns by name.

        ``observations``, ``(n, 2, length + 1, *observation_shape)``, before each step and after the last;
        ``actions``, ``(n, 2, length, *action_shape)``; ``terminated``, ``(n, 2)``, True if the environment
        ended the episode with the last step; ``complete``, ``(n,)``, True if that and the final observations
        are known; ``values``, ``true_returns``, ``ids``.

        Raises:
            DataError: there is no preference yet.
        """
        if not self._columns:
            raise DataError("the dataset is still empty; wait for the first label")
        return self._columns

    @property
    def observations(self) -> NDArray[Any]:
        """Return the observations ``(n, 2, length, *observation_shape)``, first segment before second."""
        return self.steps().observations

    @property
    def actions(self) -> NDArray[Any]:
        """Return the actions ``(n, 2, length, *action_shape)``."""
        return self.columns["actions"].rows

    @property
    def values(self) -> NDArray[np.float32]:
        """Return the probabilities that the first is preferred, ``(n,)``."""
        return self.columns["values"].rows

    @property
    def true_returns(self) -> NDArray[np.float32]:
        """Return both segments' returns by the environment's reward, ``(n, 2)``."""
        return self.columns["true_returns"].rows

    @property
    def ids(self) -> NDArray[np.uint64]:
        """Return the halves of each UUID, ``(n, 2)``."""
        return self.columns["ids"].rows

    @property
    def segment_length(self) -> int:
        """Return the number of steps per segment."""
        return int(self.actions.shape[2])

    @property
    def by_decision(self) -> NDArray[np.intp]:
        """Return the row indices from the earliest decision to the latest, ``(n,)``."""
        return np.fromiter(self._rows.values(), np.intp, len(self))

    def steps(self, rows: NDArray[np.integer[Any]] | None = None) -> StepsBatch:
        """Return copies of these rows' steps, ``(*rows.shape, 2, length, ...)``; by default views of all.

        If a segment was recorded without its final observation, reading that raises :class:`DataError`.
        """
        observations, actions, terminated, complete = (
            self.columns[name].rows if rows is None else self.columns[name].take(rows)
            for name in ("observations", "actions", "terminated", "complete")
        )
        segments = (slice(None),) * terminated.ndim
        before, after = observations[(*segments, slice(None, -1))], observations[(*segments, slice(1, None))]
        if not complete.all():
            return StepsBatch(before, actions, why_missing=NOTHING_AFTER)
        return StepsBatch(
            before, actions, after, terminations(actions.shape[: terminated.ndim + 1], terminated)
        )

    def sample(self, size: int) -> "PreferenceDataset":
        """Return ``size`` preferences, evenly spaced by age of decision, or the dataset itself.

        Raises:
            ConfigError: ``size`` is not an integer of 0 or more.
        """
        size = whole_number(size, "size", NOT_NEGATIVE)
        if len(self) <= size:
            return self
        rows = self.by_decision[np.linspace(0, len(self) - 1, size).round().astype(np.intp)]
        columns = {name: Column(kept.rows.shape[1:], kept.rows.dtype) for name, kept in self.columns.items()}
        for name, column in columns.items():
            column.extend(self.columns[name].take(rows))
        return PreferenceDataset.of_columns(self.env_id, columns)

    def upsert(self, preferences: Iterable[Preference]) -> int:
        """Add new preferences, update revised ones, drop those whose value is None.

        A revised preference counts as decided now.

        Returns:
            How many preferences were added, changed or dropped, not counting those that exceed ``max_size``.

        Raises:
            DataError: a segment's shape or environment differs from those in the dataset, or a value is not a
                probability.
            StorageError: the disk is full.
        """
        return sum(self._upsert(preference) for preference in preferences)

    def _upsert(self, preference: Preference) -> bool:
        row = self._rows.get(preference.uuid)
        if preference.value is None:
            if row is not None:
                self._drop(row)
            return row is not None
        if not 0 <= preference.value <= 1:  # False for NaN
            raise _no_probability(preference)
        if row is not None:
            if self.values[row] == np.float32(preference.value):
                return False
            self._columns["values"].replace(row, preference.value)
            self._rows[preference.uuid] = self._rows.pop(preference.uuid)
            return True
        self._append(preference, preference.value)
        self._trim()
        return True

    def _trim(self) -> None:
        excess = 0 if self._max_size is None else max(0, len(self) - self._max_size)
        for uuid in list(islice(self._rows, excess)):
            self._drop(self._rows[uuid])

    def _append(self, preference: Preference, value: float) -> None:
        pair = _alike(preference.first, preference.second)
        entries = {
            "observations": np.stack([_states(segment) for segment in pair]),
            "actions": np.stack([segment.actions for segment in pair]),
            "terminated": np.array([segment.terminated for segment in pair]),
            "complete": np.array(all(segment.final_observation is not None for segment in pair)),
            "values": np.array(value, np.float32),
            "true_returns": np.array([segment.true_return for segment in pair], np.float32),
            "ids": ids_of([preference.uuid])[0],
        }
        env_id = preference.first.recipe.env_id
        expected = env_id if self.env_id is None else self.env_id
        columns = self._columns or {
            name: Column(each.shape, _compact(each.dtype)) for name, each in entries.items()
        }
        is_same = env_id == expected or same_environment(env_id, expected)
        for name, entry in entries.items():
            kept = columns[name].rows
            found, wanted = (entry.shape, _compact(entry.dtype)), (kept.shape[1:], _compact(kept.dtype))
            if not is_same or found != wanted:
                raise DataError(
                    f"comparison {preference.uuid} has {name} of shape {found[0]} and {found[1]} from "
                    f"{env_id}, the others have {wanted[0]} and {wanted[1]} from {expected}; all "
                    "segments of a run must have the same length and environment"
                )
        self.env_id, self._columns = expected, columns
        for name in _MEASURED:
            self._suit(name, entries[name])
        for column in self._columns.values():
            column.reserve(len(self) + 1)  # all of them before any is changed
        for name, entry in entries.items():
            self._columns[name].extend(entry[None])
        self._rows[preference.uuid] = len(self)
        self._uuids.append(preference.uuid)

    def _suit(self, name: str, entry: NDArray[Any]) -> None:
        """Store a column in double precision while single precision can't resolve its numbers."""
        if entry.dtype.kind != "f" or entry.dtype.itemsize <= _SINGLE.itemsize:
            return
        column = self._columns[name]
        if name not in self._spreads:
            self._spreads[name] = Spread.of(column.all_parts(), entry.shape[2:])
        spread = self._spreads[name]
        spread.add(entry)
        # Require twice the resolution to switch back, to prevent oscillation.
        levels = FINE if column.rows.dtype == _SINGLE else 2 * FINE
        wanted = _DOUBLE if spread.is_coarse(_SINGLE, levels).any() else _SINGLE
        if column.rows.dtype != wanted:
            self._columns[name] = column.as_type(wanted)

    def _drop(self, row: int) -> None:
        """Remove a row by moving the last one into its place."""
        last = len(self) - 1
        for column in self._columns.values():
            if row != last:
                column.replace(row, column.rows[last])
            column.pop()
        del self._rows[self._uuids[row]]
        moved = self._uuids.pop()
        if row != last:
            self._uuids[row] = moved
            self._rows[moved] = row


def _no_probability(preference: Preference) -> DataError:
    """Return the error for a preference with an invalid value."""
    return DataError(
        f"comparison {preference.uuid}: expected a value from 0 to 1, the probability that its first segment "
        f"is better, or None, got {_shown(preference.value)}"
    )


def _shown(value: Any) -> str:
    return one_line(repr(value))


def _alike(first: Segment, second: Segment) -> tuple[Segment, Segment]:
    places = [(one.observations.shape, one.actions.shape, one.recipe.env_id) for one in (first, second)]
    if places[0] != places[1]:
        raise DataError(
            f"a comparison's segments differ: observations, actions and environment are {places[0]} and "
            f"{places[1]}; both must have the same environment and length"
        )
    return first, second


def _states(segment: Segment) -> NDArray[Any]:
    """Return all observations of a segment; repeat the last one if the final observation is unknown."""
    last = segment.observations[-1] if segment.final_observation is None else segment.final_observation
    return np.concatenate([segment.observations, last[None]])


def _compact(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return _SINGLE if dtype.kind == "f" else dtype

"""Preferences (the reward predictor's training targets) and the dataset that stores them."""

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from teacher.data.columns import Column, ids_of, uuids_of
from teacher.data.segments import Segment, SegmentPair
from teacher.data.steps import NOTHING_AFTER, StepsBatch
from teacher.envs.families import same_environment
from teacher.envs.trajectory import terminations
from teacher.errors import DataError, short_repr
from teacher.settings.checks import COUNT, NOT_NEGATIVE, Fits, whole_number

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SIZE = Fits("1 or more, or None to keep all", COUNT.holds)
_MAX_POISSON_WEIGHT = 12  # P(Poisson(1) > 12) is 6e-11


@dataclass(frozen=True, eq=False)
class Preference:
    """Training example for the reward predictor: two segments and the decision about them.

    Attributes:
        value: probability that ``first`` is better; 0.5 for ``equal``; None if the decision is ``cant_tell``
            or was withdrawn. Datasets drop preferences with value None.
        weight: weight of the preference's loss. One answer may imply several preferences.
        question: UUID of the question whose answer implies the preference; None if it is ``uuid``. A reward
            model is fitted to all preferences of a question or to none of them.

    Raises:
        DataError: an attribute has the wrong type, or the weight is not positive.
    """

    uuid: UUID
    first: Segment
    second: Segment
    value: float | None
    weight: float = 1.0
    question: UUID | None = None

    @property
    def items(self) -> SegmentPair:
        """The two segments."""
        return self.first, self.second

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, UUID):
            raise DataError(
                f"a preference's uuid must be a UUID, such as uuid.uuid4(), not {short_repr(self.uuid)}"
            )
        for name in ("first", "second"):
            if not isinstance(found := getattr(self, name), Segment):
                raise DataError(
                    f"comparison {self.uuid}: {name} must be a Segment, not {type(found).__name__}; "
                    "use a SegmentPool to cut episodes into segments"
                )
        if self.value is not None and not isinstance(self.value, numbers.Real | np.bool_):
            raise _no_probability(self)
        if not (isinstance(self.weight, numbers.Real | np.bool_) and 0 < self.weight < np.inf):
            raise DataError(
                f"comparison {self.uuid}: weight must be a positive number, not {short_repr(self.weight)}"
            )


def bootstrap_weights(ids: NDArray[np.uint64], members: int) -> NDArray[np.float32]:
    """Return each question's weight in each ensemble member's bootstrap sample.

    Weights have a Poisson(1) distribution and are computed from a hash of the question's UUID and the
    member's index. Every fit and every process therefore gets the same weights, and a question with weight 0
    (probability 1/e) is held out from that member permanently. The hash is the SplitMix64 finalizer (Steele,
    Lea, Flood 2014).

    Args:
        ids: upper and lower 64 bits of the UUIDs, ``(n, 2)``.

    Returns:
        Integer-valued weights of shape ``(members, n)``.

    Raises:
        ConfigError: ``members`` is not a positive integer.
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
    """Stores all current preferences in growable arrays, one row per preference.

    Segments are copied, so the dataset doesn't keep whole episodes in memory. A large dataset is stored on
    disk (see :class:`Column`).

    Args:
        max_size: maximum number of preferences; the ones with the oldest decisions are dropped first. None
            means no limit.

    Attributes:
        env_id: environment ID of all segments; None if unknown or if the dataset is empty.

    Raises:
        ConfigError: ``max_size`` is neither None nor a positive integer.
    """

    def __init__(self, max_size: int | None = None) -> None:
        self.env_id: str | None = None
        self._rows: dict[UUID, int] = {}  # row of each preference, oldest decision first
        self._uuids: list[UUID] = []
        self._columns: dict[str, Column] = {}
        self.max_size = max_size

    @classmethod
    def of_columns(cls, env_id: str | None, columns: Mapping[str, Column]) -> "PreferenceDataset":
        """Build a dataset from columns without copying them. Rows must be sorted by decision time.

        Without the columns ``weights`` and ``questions``, every preference is a question with weight 1.
        """
        dataset = cls()
        dataset.env_id = env_id
        dataset._columns = {**_one_each(columns["ids"]), **columns}
        dataset._uuids = uuids_of(columns["ids"].rows)
        dataset._rows = {uuid: row for row, uuid in enumerate(dataset._uuids)}
        return dataset

    @property
    def max_size(self) -> int | None:
        """Maximum number of preferences; None means no limit.

        Lowering it immediately drops the preferences with the oldest decisions.
        """
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
        """Return the stored columns, keyed by name.

        - ``observations``: raw observations before each step and after the last step,
          ``(n, 2, length + 1, *observation_shape)``
        - ``actions``: executed actions, ``(n, 2, length, *action_shape)``
        - ``terminated``: True if the environment terminated the episode at the last step, ``(n, 2)``
        - ``complete``: True if both ``terminated`` and the final observations were recorded, ``(n,)``
        - ``values``, ``true_returns``, ``ids``, ``weights``, ``questions``: same as the properties with these
          names

        Raises:
            DataError: the dataset is empty.
        """
        if not self._columns:
            raise DataError("the dataset is still empty; wait for the first label")
        return self._columns

    @property
    def observations(self) -> NDArray[Any]:
        """Return both segments' observations before each step, ``(n, 2, length, *observation_shape)``."""
        return self.steps().observations

    @property
    def actions(self) -> NDArray[Any]:
        """Return both segments' actions, ``(n, 2, length, *action_shape)``."""
        return self.columns["actions"].rows

    @property
    def values(self) -> NDArray[np.float32]:
        """Return the probabilities that the first segment is better, ``(n,)``."""
        return self.columns["values"].rows

    @property
    def true_returns(self) -> NDArray[np.float32]:
        """Return both segments' true returns, ``(n, 2)``."""
        return self.columns["true_returns"].rows

    @property
    def ids(self) -> NDArray[np.uint64]:
        """Return each preference's UUID as its upper and lower 64 bits, ``(n, 2)``."""
        return self.columns["ids"].rows

    @property
    def weights(self) -> NDArray[np.float32]:
        """Return the weights of the preferences' losses, ``(n,)``."""
        return self.columns["weights"].rows

    @property
    def questions(self) -> NDArray[np.uint64]:
        """Return the UUID of each preference's question as its upper and lower 64 bits, ``(n, 2)``."""
        return self.columns["questions"].rows

    @property
    def labels(self) -> int:
        """Return the number of questions whose answers imply the preferences."""
        return len(self) if self.one_each else len(np.unique(self.questions, axis=0))

    @property
    def one_each(self) -> bool:
        """Return True if every preference is a question of its own, with weight 1."""
        return not self._columns or bool((self.questions == self.ids).all() and (self.weights == 1).all())

    @property
    def segment_length(self) -> int:
        """Return the number of steps per segment."""
        return int(self.actions.shape[2])

    @property
    def by_decision(self) -> NDArray[np.intp]:
        """Return the row indices sorted by time of decision, oldest first, ``(n,)``."""
        return np.fromiter(self._rows.values(), np.intp, len(self))

    def steps(self, rows: NDArray[np.integer[Any]] | None = None) -> StepsBatch:
        """Return the steps of both segments of each row, ``(*rows.shape, 2, length, ...)``.

        If ``rows`` is None, return views of all rows instead of copies. If a segment was recorded without its
        final observation, reading the result's next observations or terminations raises :class:`DataError`.
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
        """Return a dataset of ``size`` preferences, evenly spaced in order of decision time.

        If this dataset has ``size`` preferences or fewer, return the dataset itself.

        Raises:
            ConfigError: ``size`` is not a nonnegative integer.
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
        """Add new preferences, update changed ones, and drop those whose value is None.

        A changed preference counts as the newest one.

        Returns:
            Number of preferences added, changed or dropped, not counting drops caused by ``max_size``.

        Raises:
            DataError: a segment's shape or environment differs from the dataset's, or a value is not a
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
            known, new = (self.values[row], self.weights[row]), (preference.value, preference.weight)
            if known == (np.float32(new[0]), np.float32(new[1])):
                return False
            self._columns["values"].replace(row, preference.value)
            self._columns["weights"].replace(row, preference.weight)
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
            "weights": np.array(preference.weight, np.float32),
            "questions": ids_of([preference.question or preference.uuid])[0],
        }
        env_id = preference.first.recipe.env_id
        expected = env_id if self.env_id is None else self.env_id
        columns = self._columns or {name: Column(each.shape, each.dtype) for name, each in entries.items()}
        is_same = env_id == expected or same_environment(env_id, expected)
        for name, entry in entries.items():
            kept = columns[name].rows
            found, wanted = (entry.shape, entry.dtype), (kept.shape[1:], kept.dtype)
            are_floats = entry.dtype.kind == kept.dtype.kind == "f"
            if not is_same or found[0] != wanted[0] or (found[1] != wanted[1] and not are_floats):
                raise DataError(
                    f"comparison {preference.uuid} has {name} of shape {found[0]} and type {found[1]} from "
                    f"{env_id}, but the others have shape {wanted[0]} and type {wanted[1]} from {expected}; "
                    "all segments of a run must be from the same environment and have the same length"
                )
        self.env_id, self._columns = expected, columns
        for name, entry in entries.items():
            if (dtype := np.promote_types(entry.dtype, columns[name].rows.dtype)) != columns[name].rows.dtype:
                self._columns[name] = columns[name].as_type(dtype)  # of a file with less precision
        for column in self._columns.values():
            column.reserve(len(self) + 1)  # reserve in all columns before changing any
        for name, entry in entries.items():
            self._columns[name].extend(entry[None])
        self._rows[preference.uuid] = len(self)
        self._uuids.append(preference.uuid)

    def _drop(self, row: int) -> None:
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


def _one_each(ids: Column) -> dict[str, Column]:
    """Return the columns ``weights`` and ``questions`` of preferences that each are a question."""
    weights = Column((), np.dtype(np.float32))
    weights.extend(np.ones(len(ids), np.float32))
    return {"weights": weights, "questions": ids.as_type(ids.rows.dtype)}


def _no_probability(preference: Preference) -> DataError:
    """Return the error for a preference whose value is not a probability."""
    return DataError(
        f"comparison {preference.uuid}: value must be the probability that the first segment is better, "
        f"from 0 to 1, or None, not {short_repr(preference.value)}"
    )


def _alike(first: Segment, second: Segment) -> tuple[Segment, Segment]:
    places = [(one.observations.shape, one.actions.shape, one.recipe.env_id) for one in (first, second)]
    if places[0] != places[1]:
        raise DataError(
            "the segments of a comparison differ in observation shape, action shape or environment: "
            f"{places[0]} and {places[1]}; both must be from the same environment and have the same length "
            "(first dimension of the shapes)"
        )
    return first, second


def _states(segment: Segment) -> NDArray[Any]:
    """Return a segment's observations and its final one, or the last one twice if that is unknown."""
    last = segment.observations[-1] if segment.final_observation is None else segment.final_observation
    return np.concatenate([segment.observations, last[None]])

"""The pool of segments that new queries are drawn from."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from teacher.data.cutting import SegmentCutter
from teacher.data.segments import Segment, SegmentPair, slice_of
from teacher.data.steps import readable_steps
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, pluralize
from teacher.settings.checks import COUNT, NOT_NEGATIVE, SEED, whole_number

_DRAWN_AT_ONCE = 2**14  # pairs by weight, most of them of a segment with itself where one weighs most
_WORTH_DRAWING = 1 / 16  # of these; where fewer are of two segments, the second is drawn from the others


class _Entry(NamedTuple):
    """A segment in the pool, and whether actions were explored for it."""

    segment: Segment
    explored: bool


class SegmentPool:
    """The most recent segments, each of ``length`` steps, cut from trajectories as these grow.

    A segment owns a copy of its observations and rewards. Its recipe shares the actions of its episode, and
    nothing else, so that the pool's memory is bounded by ``capacity`` segments and their episodes' actions.

    Args:
        length: steps of a segment.
        capacity: segments kept; the oldest go first.
        seed: decides where the first segment of an episode begins, and the pairs.
        max_bytes: of segments kept, but for two; None sets no limit.

    Raises:
        ConfigError: a size is no whole number of 1 or more, or no generator takes the seed.
    """

    def __init__(
        self, length: int, capacity: int = 2000, seed: int = 0, max_bytes: int | None = None
    ) -> None:
        self.length = whole_number(length, "length", COUNT)
        self.capacity = whole_number(capacity, "capacity", COUNT)
        self._max_bytes = None if max_bytes is None else whole_number(max_bytes, "max_bytes", COUNT)
        self._entries: list[_Entry] = []
        self._asked: list[SegmentPair] = []
        self._cutters: WeakKeyDictionary[Trajectory, SegmentCutter] = WeakKeyDictionary()
        self._random = np.random.default_rng(whole_number(seed, "seed", SEED))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, oldest first."""
        return [entry.segment for entry in self._entries]

    def newest(self, count: int) -> Sequence[Segment]:
        """Return the newest ``count`` segments, oldest first."""
        return [entry.segment for entry in self._entries[len(self._entries) - min(count, len(self)) :]]

    @property
    def explored(self) -> NDArray[np.bool_]:
        """``(len(self),)``: which segments came from steps that were made for questions only."""
        return np.array([entry.explored for entry in self._entries], np.bool_)

    @property
    def asked(self) -> Sequence[SegmentPair]:
        """The pairs that were asked about, of segments that are both still here."""
        return self._asked

    def extend(self, trajectories: Iterable[Trajectory], *, explored: bool = False) -> int:
        """Cut what is new in these trajectories into segments, and return how many.

        A trajectory may come again when it has grown. An episode shorter than a segment gives none; see
        :class:`SegmentCutter` for where segments begin and :func:`readable_steps` for the last step.

        Args:
            trajectories: new, or grown since they came last.
            explored: they were made for questions only.
        """
        cut = [segment for trajectory in trajectories for segment in self._cut(trajectory)]
        self.add(cut, explored=explored)
        return len(cut)

    def add(self, segments: Iterable[Segment], *, explored: bool = False) -> None:
        """Take in segments that are cut already, each of :attr:`length`, else :class:`DataError`."""
        segments = list(segments)
        if others := {len(segment) for segment in segments} - {self.length}:
            raise DataError(
                f"expected segments, all cut to {pluralize(self.length, 'step')}, got one of {min(others)}"
            )
        self._keep(self._entries + [_Entry(segment, explored) for segment in segments])

    def absorb(self, other: "SegmentPool") -> None:
        """Take in the segments of another pool, and its room."""
        self.capacity += other.capacity
        self._keep([*self._entries, *other._entries])

    def remember(self, pairs: Iterable[SegmentPair]) -> None:
        """Note that these pairs were asked about."""
        self._asked += pairs

    def sample_pairs(self, n: int, weights: NDArray[np.floating[Any]] | None = None) -> list[SegmentPair]:
        """Return ``n`` pairs of two different segments, drawn uniformly.

        No segment is in two pairs unless the pool is too small; then each is used about equally often.

        Args:
            n: how many.
            weights: ``(len(self),)``: instead, draw the segments of each pair in proportion to these.

        Raises:
            ConfigError: ``n`` is no whole number of 0 or more.
            ValueError: the pool has fewer than two segments to draw.
        """
        n = whole_number(n, "n", NOT_NEGATIVE)
        drawable = len(self) if weights is None else np.count_nonzero(weights)
        if n > 0 and drawable < 2:
            raise ValueError(f"expected a pool of 2 or more segments to pair, got {drawable}")
        segments = self.segments
        pairs: list[SegmentPair] = []
        while len(pairs) < n:
            if weights is None:
                order = self._random.permutation(len(self))
                rows = order[: len(order) // 2 * 2].reshape(-1, 2)
            else:
                drawn = self._random.choice(len(self), (max(n, _DRAWN_AT_ONCE), 2), p=weights / weights.sum())
                rows = drawn[drawn[:, 0] != drawn[:, 1]][:n]
                if len(rows) < min(n, _WORTH_DRAWING * len(drawn)):
                    rows = self._different(n, weights)
            pairs += [(segments[first], segments[second]) for first, second in rows.tolist()]
        return pairs[:n]

    def _different(self, n: int, weights: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
        """Draw rows ``(n, 2)`` in proportion to weights, given that they differ."""
        shares = weights / weights.sum()
        first_shares = shares * (1 - shares)
        first = self._random.choice(len(self), n, p=first_shares / first_shares.sum())
        second = np.empty_like(first)
        for row in np.unique(first):
            others = np.where(np.arange(len(self)) == row, 0.0, weights)
            drawn = first == row
            second[drawn] = self._random.choice(len(self), drawn.sum(), p=others / others.sum())
        return np.stack([first, second], axis=1)

    def sample_unknown(
        self, n: int, known: Iterable[SegmentPair], weights: NDArray[np.floating[Any]] | None = None
    ) -> list[SegmentPair]:
        """Return up to ``n`` pairs of two different segments, each once, and none of those that are known.

        Fewer come where there are no more. It lists all pairs, so it is for where drawing finds few new ones.

        Args:
            n: how many.
            known: pairs of segments that are here.
            weights: as in :meth:`sample_pairs`.
        """
        segments = self.segments
        weights = np.ones(len(self)) if weights is None else weights
        rows = {segment: row for row, segment in enumerate(segments)}
        chances = np.triu(np.outer(weights, weights), 1)
        for pair in known:
            first, second = sorted(rows[segment] for segment in pair)
            chances[first, second] = 0.0
        there = np.flatnonzero(chances)
        n = min(n, len(there))
        if n == 0:
            return []
        shares = chances.flat[there]
        chosen = self._random.choice(there, n, replace=False, p=shares / shares.sum())
        found = np.stack(np.divmod(chosen, len(self)), axis=1)
        found = self._random.permuted(found, axis=1)  # either is the first as often
        return [(segments[first], segments[second]) for first, second in found.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the random state; segments are not saved, because a resumed run soon has newer ones."""
        return {"random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over :meth:`state_dict`."""
        self._random.bit_generator.state = state["random"]

    def _keep(self, entries: list[_Entry]) -> None:
        """Hold the last of these, and forget questions about others."""
        self._entries = entries[-min(self.capacity, self._fitting(entries)) :]
        if len(entries) > len(self._entries):
            here = set(self.segments)
            self._asked = [pair for pair in self._asked if here.issuperset(pair)]

    def _fitting(self, entries: Sequence[_Entry]) -> int:
        """Return how many of the last of these there is memory for."""
        if self._max_bytes is None:
            return len(entries)
        sizes = np.cumsum([entry.segment.nbytes for entry in reversed(entries)])
        return max(2, int(np.searchsorted(sizes, self._max_bytes, side="right")))

    def _cut(self, trajectory: Trajectory) -> list[Segment]:
        cutter = self._cutters.get(trajectory)
        if cutter is None:
            cutter = self._cutters[trajectory] = SegmentCutter(self.length, self._random)
        parts = cutter.cut(readable_steps(trajectory), finished=trajectory.finished)
        return [slice_of(trajectory, part.start, part.stop) for part in parts]

"""Pool of segments from which queries are drawn."""

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

_DRAWN_AT_ONCE = 2**14  # pairs by weight; if one segment dominates, most pair it with itself
_WORTH_DRAWING = 1 / 16  # if a smaller share has two segments, the second is drawn from the others


class _Entry(NamedTuple):
    """A segment in the pool; ``explored`` marks exploratory actions."""

    segment: Segment
    explored: bool


class SegmentPool:
    """The most recent segments, each of ``length`` steps, cut from trajectories as they grow.

    A segment owns a copy of its observations and rewards. Its recipe shares only the actions of its episode,
    so that the pool's memory is bounded by ``capacity`` segments and their episodes' actions.

    Args:
        length: steps per segment.
        capacity: maximum number of segments; the oldest are dropped first.
        seed: for the offset of an episode's first segment, and for pairs.
        max_bytes: memory limit of the segments, though two are always kept; None: no limit.

    Raises:
        ConfigError: a size is not an integer of 1 or more, or the seed is invalid.
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
        """Return the segments, oldest first."""
        return [entry.segment for entry in self._entries]

    def newest(self, count: int) -> Sequence[Segment]:
        """Return the newest ``count`` segments, oldest first."""
        return [entry.segment for entry in self._entries[len(self._entries) - min(count, len(self)) :]]

    @property
    def explored(self) -> NDArray[np.bool_]:
        """Return a mask of the segments from steps made only for queries, ``(len(self),)``."""
        return np.array([entry.explored for entry in self._entries], np.bool_)

    @property
    def asked(self) -> Sequence[SegmentPair]:
        """Return the pairs queried so far whose segments are both still in the pool."""
        return self._asked

    def extend(self, trajectories: Iterable[Trajectory], *, explored: bool = False) -> int:
        """Cut the new parts of these trajectories into segments, and return how many.

        A trajectory may be passed again after it has grown. An episode shorter than a segment gives none; see
        :class:`SegmentCutter` for where segments start and :func:`readable_steps` for the last step.

        Args:
            trajectories: new, or grown since the last call.
            explored: the steps were made only for queries.
        """
        cut = [segment for trajectory in trajectories for segment in self._cut(trajectory)]
        self.add(cut, explored=explored)
        return len(cut)

    def add(self, segments: Iterable[Segment], *, explored: bool = False) -> None:
        """Add segments of length :attr:`length`; raise :class:`DataError` for others."""
        segments = list(segments)
        if others := {len(segment) for segment in segments} - {self.length}:
            raise DataError(
                f"expected segments, all cut to {pluralize(self.length, 'step')}, got one of {min(others)}"
            )
        self._keep(self._entries + [_Entry(segment, explored) for segment in segments])

    def absorb(self, other: "SegmentPool") -> None:
        """Add the segments of another pool, and its capacity."""
        self.capacity += other.capacity
        self._keep([*self._entries, *other._entries])

    def remember(self, pairs: Iterable[SegmentPair]) -> None:
        """Record that these pairs were queried."""
        self._asked += pairs

    def sample_pairs(self, n: int, weights: NDArray[np.floating[Any]] | None = None) -> list[SegmentPair]:
        """Return ``n`` pairs of two different segments, drawn uniformly.

        No segment is in two pairs unless the pool is too small; then all are used about equally often.

        Args:
            n: number of pairs.
            weights: ``(len(self),)``; if given, draw each pair's segments in proportion to these.

        Raises:
            ConfigError: ``n`` is not an integer of 0 or more.
            ValueError: the pool has fewer than two segments to draw from.
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
        """Draw rows ``(n, 2)`` in proportion to weights, conditional on the two being different."""
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
        """Return up to ``n`` distinct pairs of two different segments that are not in ``known``.

        Returns fewer if there are no more. It lists all pairs, so use it only where random draws find few new
        ones.

        Args:
            n: number of pairs.
            known: pairs of segments in this pool.
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
        found = self._random.permuted(found, axis=1)  # each is first equally often
        return [(segments[first], segments[second]) for first, second in found.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the random state; segments are not saved, because a resumed run soon has newer ones."""
        return {"random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._random.bit_generator.state = state["random"]

    def _keep(self, entries: list[_Entry]) -> None:
        """Keep the last of these entries, and forget queried pairs of dropped segments."""
        self._entries = entries[-min(self.capacity, self._fitting(entries)) :]
        if len(entries) > len(self._entries):
            here = set(self.segments)
            self._asked = [pair for pair in self._asked if here.issuperset(pair)]

    def _fitting(self, entries: Sequence[_Entry]) -> int:
        """Return how many of the last entries fit into the memory limit."""
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

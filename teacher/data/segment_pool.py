"""Pool of recent segments from which pairs for comparisons are drawn."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from teacher.data.segments import Segment, SegmentCutter, SegmentPair, slice_of
from teacher.data.steps import readable_steps
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, pluralize
from teacher.settings.checks import COUNT, NOT_NEGATIVE, SEED, whole_number

_DRAWN_AT_ONCE = 2**14  # pairs per weighted draw; pairs of a segment with itself are discarded
_WORTH_DRAWING = 1 / 16  # minimum share of drawn pairs with two different segments


class _Entry(NamedTuple):
    """A segment in the pool; ``explored`` is True if its steps are for comparisons only, not for training."""

    segment: Segment
    explored: bool


class SegmentPool:
    """Cuts segments from trajectories as they grow, and stores the most recent ones.

    Each segment has its own copy of observations and rewards, and shares only the actions with its episode.
    The pool's memory is therefore limited to ``capacity`` segments and the actions of their episodes.

    Args:
        capacity: maximum number of segments; the oldest are dropped first.
        seed: random seed for drawing pairs and for the offset of each episode's first segment.
        max_bytes: memory limit for the segments, in bytes; at least two are always kept. None means no limit.

    Raises:
        ConfigError: ``length``, ``capacity`` or ``max_bytes`` is not a positive integer, or the seed is
            invalid.
    """

    def __init__(
        self, length: int, capacity: int = 2000, seed: int = 0, max_bytes: int | None = None
    ) -> None:
        self.length = whole_number(length, "length", COUNT)
        self.capacity = whole_number(capacity, "capacity", COUNT)
        self._max_bytes = None if max_bytes is None else whole_number(max_bytes, "max_bytes", COUNT)
        self._entries: list[_Entry] = []
        self._asked: dict[tuple[Segment, ...], None] = {}  # in order
        self._cutters: WeakKeyDictionary[Trajectory, SegmentCutter] = WeakKeyDictionary()
        self._random = np.random.default_rng(whole_number(seed, "seed", SEED))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def segments(self) -> Sequence[Segment]:
        """Return all segments, oldest first."""
        return [entry.segment for entry in self._entries]

    def newest(self, count: int) -> Sequence[Segment]:
        """Return the newest ``count`` segments, oldest first."""
        return [entry.segment for entry in self._entries[len(self._entries) - min(count, len(self)) :]]

    @property
    def explored(self) -> NDArray[np.bool_]:
        """Return a mask of the segments from extra exploration steps, ``(len(self),)``."""
        return np.array([entry.explored for entry in self._entries], np.bool_)

    @property
    def asked(self) -> Sequence[tuple[Segment, ...]]:
        """Return the items of the questions already selected, if they are all still in the pool."""
        return list(self._asked)

    def extend(self, trajectories: Iterable[Trajectory], *, explored: bool = False) -> int:
        """Cut the trajectories' new steps into segments and add them; return the number of new segments.

        A trajectory may be passed again after it has grown. An episode shorter than ``length`` yields no
        segments. :class:`SegmentCutter` decides where segments start, and :func:`readable_steps` decides
        which steps are usable. If the episode absorbs, no segment ends more than ``length`` steps after the
        observation last changed. Otherwise, most pairs would be ties between segments without any change.

        Args:
            explored: True if these are extra exploration steps, taken for comparisons but not for training.
        """
        cut = [segment for trajectory in trajectories for segment in self._cut(trajectory)]
        self.add(cut, explored=explored)
        return len(cut)

    def add(self, segments: Iterable[Segment], *, explored: bool = False) -> None:
        """Add segments; raise :class:`DataError` if one doesn't have :attr:`length` steps."""
        segments = list(segments)
        if others := {len(segment) for segment in segments} - {self.length}:
            raise DataError(
                f"segments in this pool must have {pluralize(self.length, 'step')}, but one has {min(others)}"
            )
        self._keep(self._entries + [_Entry(segment, explored) for segment in segments])

    def absorb(self, other: "SegmentPool") -> None:
        """Add another pool's segments, and increase the capacity by the other pool's capacity."""
        self.capacity += other.capacity
        self._keep([*self._entries, *other._entries])

    def remember(self, questions: Iterable[tuple[Segment, ...]]) -> None:
        """Record the items of selected questions; they may be recorded twice."""
        self._asked |= dict.fromkeys(questions)

    def sample_pairs(self, n: int, weights: NDArray[np.floating[Any]] | None = None) -> list[SegmentPair]:
        """Return ``n`` random pairs of distinct segments.

        Without weights, each segment is used at most once if the pool is large enough, and otherwise all are
        used about equally often.

        Args:
            weights: weight of each segment, ``(len(self),)``; segments are drawn in proportion to their
                weights. None draws uniformly.

        Raises:
            ConfigError: ``n`` is not a nonnegative integer.
            ValueError: the pool has fewer than two segments with nonzero weight.
        """
        n = whole_number(n, "n", NOT_NEGATIVE)
        drawable = len(self) if weights is None else np.count_nonzero(weights)
        if n > 0 and drawable < 2:
            raise ValueError(
                f"drawing pairs requires at least 2 segments with nonzero weight, but the pool has {drawable}"
            )
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
            pairs += [(segments[one], segments[other]) for one, other in rows.tolist()]
        return pairs[:n]

    def sample_groups(
        self, n: int, size: int, weights: NDArray[np.floating[Any]] | None = None
    ) -> list[tuple[Segment, ...]]:
        """Return ``n`` random groups of distinct segments; no two share one if the pool is large enough.

        Args:
            weights: weight of each segment, as in :meth:`sample_pairs`.

        Raises:
            ValueError: the pool has fewer than ``size`` segments with nonzero weight.
        """
        drawable = len(self) if weights is None else np.count_nonzero(weights)
        if n > 0 and drawable < size:
            raise ValueError(f"expected {size} segments with nonzero weight, but the pool has {drawable}")
        shares = None if weights is None else weights / weights.sum()
        segments, groups = self.segments, list[tuple[Segment, ...]]()
        while len(groups) < n:
            order = self._random.choice(len(self), drawable, replace=False, p=shares)
            rows = order[: drawable // size * size].reshape(-1, size)
            groups += [tuple(segments[row] for row in group) for group in rows.tolist()]
        return groups[:n]

    def _different(self, n: int, weights: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
        """Draw ``n`` pairs of different segment indices in proportion to the weights, ``(n, 2)``."""
        shares = weights / weights.sum()
        shares_of_one = shares * (1 - shares)
        one = self._random.choice(len(self), n, p=shares_of_one / shares_of_one.sum())
        other = np.empty_like(one)
        for row in np.unique(one):
            others = np.where(np.arange(len(self)) == row, 0.0, weights)
            drawn = one == row
            other[drawn] = self._random.choice(len(self), drawn.sum(), p=others / others.sum())
        return np.stack([one, other], axis=1)

    def sample_unknown(
        self, n: int, known: Iterable[SegmentPair], weights: NDArray[np.floating[Any]] | None = None
    ) -> list[SegmentPair]:
        """Return up to ``n`` distinct random pairs that are not in ``known``.

        The result is shorter if there are fewer such pairs. The method enumerates all pairs in the pool, so
        use it only if :meth:`sample_pairs` finds too few new ones.

        Args:
            known: segment pairs to exclude, in either order; all their segments must be in this pool.
            weights: weight of each segment, as in :meth:`sample_pairs`.
        """
        segments = self.segments
        weights = np.ones(len(self)) if weights is None else weights
        rows = {segment: row for row, segment in enumerate(segments)}
        chances = np.triu(np.outer(weights, weights), 1)
        for pair in known:
            one, other = sorted(rows[segment] for segment in pair)
            chances[one, other] = 0.0
        there = np.flatnonzero(chances)
        n = min(n, len(there))
        if n == 0:
            return []
        shares = chances.flat[there]
        chosen = self._random.choice(there, n, replace=False, p=shares / shares.sum())
        found = np.stack(np.divmod(chosen, len(self)), axis=1)
        found = self._random.permuted(found, axis=1)  # in random order within each pair
        return [(segments[one], segments[other]) for one, other in found.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random number generator.

        Segments are not included, because a resumed run soon collects new ones.
        """
        return {"random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the random number generator from the output of :meth:`state_dict`."""
        self._random.bit_generator.state = state["random"]

    def _keep(self, entries: list[_Entry]) -> None:
        """Keep the newest entries that fit the limits; forget chosen pairs that include a dropped segment."""
        self._entries = entries[-min(self.capacity, self._fitting(entries)) :]
        if len(entries) > len(self._entries):
            here = set(self.segments)
            self._asked = {pair: None for pair in self._asked if here.issuperset(pair)}

    def _fitting(self, entries: Sequence[_Entry]) -> int:
        """Return how many of the newest entries fit within the memory limit, but at least 2."""
        if self._max_bytes is None:
            return len(entries)
        sizes = np.cumsum([entry.segment.nbytes for entry in reversed(entries)])
        return max(2, int(np.searchsorted(sizes, self._max_bytes, side="right")))

    def _cut(self, trajectory: Trajectory) -> list[Segment]:
        cutter = self._cutters.get(trajectory)
        if cutter is None:
            cutter = self._cutters[trajectory] = SegmentCutter(self.length, self._random)
        steps, finished = readable_steps(trajectory), trajectory.finished
        if trajectory.absorbs:
            upto = trajectory.moving_steps + self.length
            steps, finished = min(steps, upto), finished or steps >= upto
        parts = cutter.cut(steps, finished=finished)
        return [slice_of(trajectory, part.start, part.stop) for part in parts]

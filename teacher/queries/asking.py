"""Submission of comparisons for labeling, and collection of the resulting preferences."""

import contextlib
import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from teacher.data.decisions import Phase
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, SegmentPair
from teacher.errors import UndecidedError
from teacher.queries.collector import Collector
from teacher.queries.schedules import LabelSchedule
from teacher.queries.selection import Ensemble, select_pairs, sure_pairs
from teacher.settings.options import QueryConfig

FINAL_ROUNDS = 50
MIN_OPEN_COMPARISONS = 20
OPEN_COMPARISONS_PER_LABELER = 4
_FEWEST_TO_WARN = 10  # "can't tell" decisions


class Tally(Protocol):
    """Protocol for counting a run's comparisons, implemented by :class:`~teacher.data.ledger.Ledger`.

    ``phase`` restricts a count to one phase; None counts all phases.
    """

    def asked(self, phase: Phase | None = None) -> int:
        """Return the used label budget: the number of comparisons that are open or have a preference."""

    def open(self, phase: Phase | None = None) -> int:
        """Return the number of comparisons waiting for a decision."""

    def usable(self, phase: Phase | None = None) -> int:
        """Return the number of comparisons labeled ``first``, ``second`` or ``equal``."""

    def cant_tell(self) -> int:
        """Return the number of comparisons labeled "can't tell"."""

    def gold(self) -> int:
        """Return the number of attention checks submitted."""

    def total(self) -> int:
        """Return the number of comparisons ever created, regardless of their status."""


TallyT = TypeVar("TallyT", bound=Tally)


@dataclass(frozen=True)
class Submitted:
    """Comparisons submitted by one call to :meth:`Asking.submit`.

    Attributes:
        pairs: the two segments of each comparison.
        segments: number of segments in the pool.
    """

    pairs: Sequence[SegmentPair]
    segments: int

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def repeats_segments(self) -> bool:
        """Return True if a segment is in more than one pair because the pool has too few segments."""
        return len({segment for pair in self.pairs for segment in pair}) < 2 * len(self.pairs)


@dataclass(frozen=True)
class Received:
    """Counts returned by one call to :meth:`Asking.receive`.

    Attributes:
        decisions: number of decisions made or revised since the previous call.
        only_cant_tell: number of "can't tell" decisions in the whole run if there are ten or more and the
            dataset is still empty; otherwise 0. Callers should warn the user if it is positive.
    """

    decisions: int
    only_cant_tell: int = 0

    def __bool__(self) -> bool:
        return self.decisions > 0


@dataclass
class Asking(Generic[TallyT]):
    """Submits pairs of segments for labeling and adds the resulting preferences to a dataset.

    The caller must decide when to call each method, and must report the results to the user.

    Attributes:
        ledger: object that counts the comparisons, such as the run's ledger.
        collector: label source; comparisons are submitted to it, and preferences are received from it.
        dataset: the preferences received so far.
        pool: the segments to draw pairs from.
        schedule: label schedule, which determines how many labels are due at each step.
        queries: query selection settings; None to select pairs uniformly at random.
        earlier: number of labels loaded from a file; these count as already requested.
        seconds: training time in seconds, used by time-based schedules.
        unfitted: number of preferences added, changed or dropped since the last fit.
    """

    ledger: TallyT
    collector: Collector
    dataset: PreferenceDataset
    pool: SegmentPool
    schedule: LabelSchedule
    queries: QueryConfig | None = field(default=None, kw_only=True)
    earlier: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    unfitted: int = field(default=0, kw_only=True)

    @property
    def asked(self) -> int:
        """Return the number of labels requested or loaded, not counting "can't tell" decisions."""
        return self.earlier + self.ledger.asked()

    def due(self, step: int) -> int:
        """Return the total number of labels that should have been requested by environment step ``step``."""
        return self.schedule.due(step, self.seconds)

    def missing(self, step: int) -> int:
        """Return the number of labels due by environment step ``step`` but not yet requested.

        The number is negative if more labels were requested than are due.
        """
        return self.due(step) - self.asked

    @property
    def open_limit(self) -> int:
        """Return the maximum number of comparisons that may be open at once.

        The limit keeps labelers from judging outdated behavior; it grows with the number of active labelers.
        """
        labelers = self.collector.status.active_labelers or 0
        return max(MIN_OPEN_COMPARISONS, OPEN_COMPARISONS_PER_LABELER * labelers)

    def submit(
        self,
        count: int,
        step: int,
        phase: Phase = "training",
        *,
        predictor: Ensemble | None = None,
        shown: Callable[[Segment], Segment] | None = None,
    ) -> Submitted:
        """Select up to ``count`` pairs from the pool, submit them, and return them.

        Args:
            count: number of comparisons; fewer are submitted if the pool runs out of new pairs.
            step: number of environment steps taken.
            phase: phase to record for the comparisons.
            predictor: ensemble for active selection; None selects pairs at random.
            shown: function that maps each selected segment to the segment shown to labelers; None shows
                segments unchanged.
        """
        pairs = select_pairs(self.pool, count, self.queries, predictor)
        if pairs:
            sent = pairs if shown is None else [(shown(first), shown(second)) for first, second in pairs]
            self.collector.submit(sent, phase, step)
        return Submitted(pairs, len(self.pool))

    def submit_checks(
        self, pool: SegmentPool, share: float, value: Callable[[Segment], float], step: int
    ) -> None:
        """Submit attention checks until the ratio of checks to requested comparisons is ``share``.

        Args:
            pool: the segments to draw pairs from.
            share: ratio of attention checks to requested comparisons; if 0, submit none.
            value: function that scores a segment, for example by its true return; the pairs whose scores
                differ most become attention checks.
            step: number of environment steps taken.
        """
        if share == 0:
            return
        missing = math.floor(share * self.ledger.asked()) - self.ledger.gold()
        pairs = sure_pairs(pool, missing, value, self.queries or QueryConfig())
        if pairs:
            self.collector.submit(pairs, "gold", step)

    def submit_rest(self, submit: Callable[[], Sized]) -> None:
        """Call ``submit`` repeatedly to replace comparisons that were labeled "can't tell".

        Used at the end of a run, when no later round will request the missing labels. Stops when ``submit``
        returns an empty result, after 50 calls, or when a scripted teacher skips too many pairs in a row.

        Args:
            submit: function that submits comparisons for the missing labels and returns them.
        """
        with contextlib.suppress(UndecidedError):
            for _ in range(FINAL_ROUNDS):
                if not submit():
                    return

    def receive(self) -> Received:
        """Add all newly received preferences to the dataset without blocking, and return their counts."""
        return self._take(self.collector.receive())

    def _take(self, preferences: Sequence[Preference]) -> Received:
        self.unfitted += self.dataset.upsert(preferences)
        if not preferences or len(self.dataset):
            return Received(len(preferences))
        count = self.ledger.cant_tell()
        return Received(len(preferences), count if count >= _FEWEST_TO_WARN else 0)

"""Submission of comparisons, and collection of the preferences that result."""

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
_MANY = 10  # "can't tell" decisions before a warning


class Tally(Protocol):
    """Counts comparisons; a :class:`~teacher.data.ledger.Ledger` is one."""

    def asked(self, phase: Phase | None = None) -> int:
        """Return how many comparisons use up the label budget: open ones and those with a preference."""

    def open(self, phase: Phase | None = None) -> int:
        """Return how many comparisons have no decision yet."""

    def usable(self, phase: Phase | None = None) -> int:
        """Return how many comparisons were decided as first, second or equal."""

    def cant_tell(self) -> int:
        """Return how many comparisons were decided as "can't tell"."""

    def gold(self) -> int:
        """Return how many attention checks were submitted."""

    def total(self) -> int:
        """Return how many comparisons were ever written, whatever became of them."""


TallyT = TypeVar("TallyT", bound=Tally)


@dataclass(frozen=True)
class Submitted:
    """The comparisons of one submission.

    Attributes:
        pairs: the segments of each.
        segments: how many segments the pool holds.
    """

    pairs: Sequence[SegmentPair]
    segments: int

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def repeats_segments(self) -> bool:
        """Return True if some segment is in several of these pairs, because the pool holds too few."""
        return len({segment for pair in self.pairs for segment in pair}) < 2 * len(self.pairs)


@dataclass(frozen=True)
class Received:
    """The labels from one call of :meth:`Asking.receive`.

    Attributes:
        decisions: number of new or revised decisions.
        only_cant_tell: total number of decisions if all of them are "can't tell" and there are enough to warn
            about it; 0 otherwise.
    """

    decisions: int
    only_cant_tell: int = 0

    def __bool__(self) -> bool:
        return self.decisions > 0


@dataclass
class Asking(Generic[TallyT]):
    """Submits comparisons of segments and receives their labels.

    The caller decides when each stage runs and reports the results to the user; nothing is printed here.

    Attributes:
        ledger: counts the comparisons.
        collector: takes comparisons and returns preferences.
        dataset: the preferences received.
        pool: the segments to compare.
        schedule: how many labels are due when.
        queries: how pairs are selected; at random by default.
        earlier: labels from before the ledger's first comparison.
        seconds: training time so far, for schedules by time.
        unfitted: preferences added or changed since the last fit.
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
        """Return how many labels were asked for so far, without those decided as "can't tell"."""
        return self.earlier + self.ledger.asked()

    def due(self, step: int) -> int:
        """Return how many labels in total should have been asked for by ``step`` environment steps."""
        return self.schedule.due(step, self.seconds)

    def missing(self, step: int) -> int:
        """Return how many labels are due by ``step`` environment steps but not asked for yet."""
        return self.due(step) - self.asked

    @property
    def open_limit(self) -> int:
        """Return how many comparisons may be open, limited so that labels are about recent behavior."""
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
        """Select up to ``count`` pairs from the pool and submit them.

        Args:
            count: comparisons wanted; fewer are submitted if the pool runs out of new pairs.
            step: environment steps so far.
            phase: of the comparisons.
            predictor: for active selection; without one, pairs are random.
            shown: maps a segment to the one that labelers see.
        """
        pairs = select_pairs(self.pool, count, self.queries, predictor)
        if pairs:
            sent = pairs if shown is None else [(shown(first), shown(second)) for first, second in pairs]
            self.collector.submit(sent, phase, step)
        return Submitted(pairs, len(self.pool))

    def submit_checks(
        self, pool: SegmentPool, share: float, value: Callable[[Segment], float], step: int
    ) -> None:
        """Submit attention checks until their share of the comparisons asked is ``share``.

        Args:
            pool: the segments to compare.
            share: attention checks per comparison; 0 submits none.
            value: true value of a segment; pairs with the clearest difference are used.
            step: environment steps so far.
        """
        if share == 0:
            return
        missing = math.floor(share * self.ledger.asked()) - self.ledger.gold()
        pairs = sure_pairs(pool, missing, value, self.queries or QueryConfig())
        if pairs:
            self.collector.submit(pairs, "gold", step)

    def submit_rest(self, submit: Callable[[], Sized]) -> None:
        """Submit further pairs to replace "can't tell" decisions when there is no later round.

        Args:
            submit: submits what is missing; stops after an empty result, or when the teacher gives up.
        """
        with contextlib.suppress(UndecidedError):
            for _ in range(FINAL_ROUNDS):
                if not submit():
                    return

    def receive(self) -> Received:
        """Add the decisions made since the last call to the dataset; never blocks."""
        return self._take(self.collector.receive())

    def _take(self, preferences: Sequence[Preference]) -> Received:
        self.unfitted += self.dataset.upsert(preferences)
        if not preferences or len(self.dataset):
            return Received(len(preferences))
        count = self.ledger.cant_tell()
        return Received(len(preferences), count if count >= _MANY else 0)

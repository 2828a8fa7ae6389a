"""Synthetic teachers: collectors that use a judge to label every comparison immediately."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from teacher.data.decisions import FeedItem, Phase
from teacher.data.ledger import Comparison, Ledger, Role
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentPair
from teacher.queries.collector import CollectorStatus
from teacher.queries.judges import Judge, ScriptedTeacher, answer_of, decision_of, oracle
from teacher.settings.teachers import RETURNS_REMEMBERED, ErrorModel


def scripted_judge(
    error_model: ErrorModel, seed: int, ledger: Ledger, pool: SegmentPool | None = None
) -> ScriptedTeacher:
    """Return the run's scripted teacher.

    If the error model has thresholds, the teacher is initialized with the pairs already labeled in
    ``ledger``. ``pool`` has the segments collected in training; None if the teacher can't see them.
    """
    seen = ledger.decided_pairs(RETURNS_REMEMBERED // 2) if error_model.has_thresholds else ()
    return ScriptedTeacher(error_model, seed, seen, pool)


class InstantTeacher:
    """Base class of collectors that label automatically and immediately, without human labelers."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._answered: list[Preference] = []

    def receive(self) -> list[Preference]:
        """Return the preferences decided since the last call, without blocking."""
        answered, self._answered = self._answered, []
        return answered

    @property
    def status(self) -> CollectorStatus:
        """Return a status of ``running``, with advice if the judge is a scripted teacher."""
        return CollectorStatus(
            remedy=self._judge.remedy if isinstance(self._judge, ScriptedTeacher) else None
        )

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Do nothing because there are no human labelers to notify."""

    def show(self, film: Path, step: int) -> None:
        """Do nothing because there are no human labelers."""

    def finish(self) -> None:
        """Do nothing because there are no human labelers to notify."""

    def close(self) -> None:
        """Do nothing because there is nothing to close."""


class SyntheticTeacher(InstantTeacher):
    """Collector that labels every comparison immediately and records it in a ledger.

    The comparisons' UUIDs depend only on ``seed`` and the order of the comparisons, so that runs are
    reproducible. If a killed run left comparisons open, the constructor labels them.

    Args:
        ledger: the run's ledger.
        seed: seed for the UUIDs.
        judge: function that labels the comparisons.
    """

    def __init__(self, ledger: Ledger, seed: int, judge: Judge = oracle) -> None:
        super().__init__(judge)
        self._ledger = ledger
        self._seed = seed
        self._answer(ledger.unfinished())

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """Write the pairs to the ledger as comparisons, and label them."""
        count = self._ledger.total()
        comparisons = [
            Comparison(self._uuid(count + index), first, second, phase, step)
            for index, (first, second) in enumerate(pairs)
        ]
        self._ledger.write(comparisons)
        self._answer(comparisons)

    def _uuid(self, index: int) -> UUID:
        return uuid5(NAMESPACE_URL, f"synthetic/{self._seed}/{index}")

    def _answer(self, comparisons: Sequence[Comparison]) -> None:
        """Label and record the comparisons; if the judge fails, keep the labels made so far."""
        decisions: list[FeedItem] = []
        try:
            for seq, comparison in enumerate(comparisons, self._ledger.cursor + 1):
                decisions.append(self._decide(comparison, seq))
        finally:
            if decisions:
                self._ledger.record(decisions, cursor=decisions[-1].seq)
                self._answered += [
                    Preference(comparison.uuid, comparison.first, comparison.second, decision.probability)
                    for comparison, decision in zip(comparisons, decisions, strict=False)
                ]

    def _decide(self, comparison: Comparison, seq: int) -> FeedItem:
        probability = answer_of(self._judge, comparison.first, comparison.second)
        return FeedItem(seq, comparison.uuid, decision_of(probability), probability, n_labels=1)


class UnrecordedTeacher(InstantTeacher):
    """Collector that labels every comparison immediately, for a single fit without a run or ledger.

    It counts the comparisons itself and therefore also implements :class:`Tally`. The comparisons' UUIDs
    depend only on their order, so that ensemble members get the same bootstrap samples in every process.

    Args:
        judge: function that labels the comparisons.
    """

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._total = self._usable = 0

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """Label pairs; the preferences are returned by :meth:`receive`."""
        for first, second in pairs:
            uuid = uuid5(NAMESPACE_URL, f"offline/{self._total}")
            preference = Preference(uuid, first, second, answer_of(self._judge, first, second))
            self._total += 1
            self._usable += preference.value is not None
            self._answered.append(preference)

    def total(self) -> int:
        """Return the number of comparisons submitted."""
        return self._total

    def asked(self, phase: Phase | None = None) -> int:
        """Return the number of comparisons not labeled ``cant_tell``.

        No comparison is ever open, because every comparison is labeled immediately.
        """
        return self._usable

    def usable(self, phase: Phase | None = None) -> int:
        """Return the number of comparisons labeled ``first``, ``second`` or ``equal``."""
        return self._usable

    def open(self, phase: Phase | None = None) -> int:
        """Return 0 because every comparison is labeled immediately."""
        return 0

    def cant_tell(self) -> int:
        """Return the number of comparisons labeled ``cant_tell``."""
        return self._total - self._usable

    def gold(self) -> int:
        """Return 0 because there are no attention checks."""
        return 0

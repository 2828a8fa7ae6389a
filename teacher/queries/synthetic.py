"""Synthetic teachers: functions of the segments, such as their true return, that label at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from teacher.data.decisions import FeedItem, Phase
from teacher.data.ledger import Comparison, Ledger, Role
from teacher.data.preferences import Preference
from teacher.data.segments import SegmentPair
from teacher.queries.collector import CollectorStatus
from teacher.queries.judges import Judge, ScriptedTeacher, answer_of, decision_of, oracle
from teacher.settings.teachers import RETURNS_REMEMBERED, ErrorModel


def scripted_judge(error_model: ErrorModel, seed: int, ledger: Ledger) -> ScriptedTeacher:
    """Return a scripted teacher that remembers the pairs decided by earlier processes of the run."""
    seen = ledger.decided_pairs(RETURNS_REMEMBERED // 2) if error_model.has_thresholds else ()
    return ScriptedTeacher(error_model, seed, seen)


class InstantTeacher:
    """Base of collectors that label at once and have nobody to inform."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._answered: list[Preference] = []

    def receive(self) -> list[Preference]:
        """See :meth:`Collector.receive`."""
        answered, self._answered = self._answered, []
        return answered

    @property
    def status(self) -> CollectorStatus:
        """See :meth:`Collector.status`."""
        return CollectorStatus(
            remedy=self._judge.remedy if isinstance(self._judge, ScriptedTeacher) else None
        )

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Do nothing: there is nobody to inform."""

    def show(self, film: Path, step: int) -> None:
        """Do nothing: there is nobody to show it to."""

    def finish(self) -> None:
        """Do nothing: there is nobody to inform."""

    def close(self) -> None:
        """See :meth:`Collector.close`."""


class SyntheticTeacher(InstantTeacher):
    """Labels every comparison at once, by default with the oracle, and records it in a ledger.

    UUIDs follow from ``seed`` and the number of earlier comparisons, so that a run repeats exactly.
    Comparisons that a killed run left open are labeled on construction.
    """

    def __init__(self, ledger: Ledger, seed: int, judge: Judge = oracle) -> None:
        super().__init__(judge)
        self._ledger = ledger
        self._seed = seed
        self._answer(ledger.unfinished())

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """See :meth:`Collector.submit`."""
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
        """Label the comparisons; keep the labels made so far if the judge fails."""
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
    """Labels every comparison at once and keeps only their number; for a single fit without a run.

    UUIDs follow from the number of earlier comparisons, so that a member's bootstrap sample is the same in
    every process. Also implements :class:`Tally`.
    """

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._total = self._usable = 0

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """See :meth:`Collector.submit`."""
        for first, second in pairs:
            uuid = uuid5(NAMESPACE_URL, f"offline/{self._total}")
            preference = Preference(uuid, first, second, answer_of(self._judge, first, second))
            self._total += 1
            self._usable += preference.value is not None
            self._answered.append(preference)

    def total(self) -> int:
        """See :meth:`Tally.total`."""
        return self._total

    def asked(self, phase: Phase | None = None) -> int:
        """See :meth:`Tally.asked`."""
        return self._usable

    def usable(self, phase: Phase | None = None) -> int:
        """See :meth:`Tally.usable`."""
        return self._usable

    def open(self, phase: Phase | None = None) -> int:
        """Return 0: no comparison stays open."""
        return 0

    def cant_tell(self) -> int:
        """See :meth:`Tally.cant_tell`."""
        return self._total - self._usable

    def gold(self) -> int:
        """Return 0: there are no attention checks."""
        return 0

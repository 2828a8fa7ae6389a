"""A teacher that is a function of the segments, such as their true return: answers at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from teacher.data.decisions import FeedItem, Phase
from teacher.data.ledger import Comparison, Ledger, Role
from teacher.data.preferences import Preference
from teacher.data.segments import SegmentPair
from teacher.queries.collector import CollectorStatus
from teacher.queries.judges import Judge, ScriptedTeacher, answer_of, decision_of, oracle


class InstantTeacher:
    """The part of a :class:`Collector` that a teacher who answers at once has nothing to do for."""

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
        """See :meth:`Collector.report`; there is nobody to tell."""

    def show(self, film: Path, step: int) -> None:
        """See :meth:`Collector.show`; there is nobody to watch."""

    def finish(self) -> None:
        """See :meth:`Collector.finish`; there is nobody to tell."""

    def close(self) -> None:
        """See :meth:`Collector.close`."""


class SyntheticTeacher(InstantTeacher):
    """Answers every comparison at once, by the oracle unless told otherwise, and notes it in a ledger.

    UUIDs follow from ``seed`` and the number of comparisons asked before, so that a run repeats exactly.
    Comparisons that a killed run left unanswered are answered on construction.
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
        """Answer them, and keep the answers given before the judge fails."""
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
    """Answers every comparison at once, and keeps only their number; for a single fit without a run.

    UUIDs follow from the number of comparisons before, so that a member's bootstrap sample is the same in
    every process. It is a tally too.
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
        """See :meth:`Tally.open`; none is ever left open."""
        return 0

    def cant_tell(self) -> int:
        """See :meth:`Tally.cant_tell`."""
        return self._total - self._usable

    def gold(self) -> int:
        """See :meth:`Tally.gold`; there are none."""
        return 0

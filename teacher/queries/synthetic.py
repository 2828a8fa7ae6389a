"""Synthetic teacher: a collector that uses a judge to label every comparison immediately."""

from collections.abc import Sequence
from itertools import count
from uuid import NAMESPACE_URL, uuid5

from teacher.data.ledger import Comparison, Ledger, Role
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentPair
from teacher.queries.collector import Collector, CollectorStatus
from teacher.queries.judges import Judge, ScriptedTeacher, answer_of, oracle
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


class SyntheticTeacher(Collector):
    """Collector that labels every comparison immediately.

    The comparisons' UUIDs depend only on ``seed`` and the order of the comparisons, so that runs are
    reproducible. If a killed run left comparisons open, the constructor labels them.

    Args:
        seed: seed for the UUIDs; None for offline learning.
    """

    def __init__(self, ledger: Ledger, seed: int | None, judge: Judge = oracle) -> None:
        super().__init__(ledger)
        self._name, self._judge = "offline" if seed is None else f"synthetic/{seed}", judge
        self._answer(ledger.unfinished())

    @property
    def status(self) -> CollectorStatus:
        """Return a status of ``running``, with advice if the judge is a scripted teacher."""
        return CollectorStatus(
            remedy=self._judge.remedy if isinstance(self._judge, ScriptedTeacher) else None
        )

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """Write the pairs to the ledger as comparisons, and label them."""
        uuids = (uuid5(NAMESPACE_URL, f"{self._name}/{index}") for index in count(self._ledger.total()))
        self._answer(self._write(pairs, phase, step, uuids.__next__))

    def _answer(self, comparisons: Sequence[Comparison]) -> None:
        """Label and record the comparisons; if the judge fails, keep the labels made so far."""
        answers: list[float | None] = []
        try:
            for comparison in comparisons:
                answers.append(answer_of(self._judge, comparison.first, comparison.second))
        finally:
            self._decide(comparisons[: len(answers)], answers)

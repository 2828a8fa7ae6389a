"""Sources of labels: the base class of collectors, and the one that asks a judge instead of people."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from teacher.data.decisions import SiteState
from teacher.data.ledger import Comparison, Ledger, Role
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import SegmentPair
from teacher.queries.judges import Judge, ScriptedTeacher, answer_of, decision_of, oracle
from teacher.settings.teachers import RETURNS_REMEMBERED, ErrorModel


@dataclass(frozen=True)
class CollectorStatus:
    """Status of the labelers and of the labeling site.

    Attributes:
        state: state of the experiment on the site; training pauses while the experiment is paused and ends
            once it is finished.
        active_labelers: number of labelers currently active; None until the site has reported it.
        failed: number of comparisons dropped by this process because their clips could not be rendered.
        away: error message while the site is not responding, else None.
        remedy: advice to show if all decisions are "can't tell"; None shows the advice for human labelers.
    """

    state: SiteState = "running"
    active_labelers: int | None = None
    failed: int = 0
    away: str | None = None
    remedy: str | None = None


class Collector:
    """Base class of label sources, which take pairs of segments and later return preferences."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._arrived: list[Preference] = []

    def submit(self, pairs: Sequence[SegmentPair], phase: Role, step: int) -> None:
        """Write ``pairs`` to the ledger and submit them for labeling, without waiting for the network.

        Args:
            phase: ``pretraining`` or ``training``, or ``gold`` for attention checks, which detect careless
                labelers and never return a preference.
        """
        raise NotImplementedError

    def _write(
        self, pairs: Sequence[SegmentPair], phase: Role, step: int, uuid: Callable[[], UUID] = uuid4
    ) -> list[Comparison]:
        comparisons = [Comparison(uuid(), first, second, phase, step) for first, second in pairs]
        self._ledger.write(comparisons)
        return comparisons

    def _decide(self, comparisons: Sequence[Comparison], probabilities: Sequence[float | None]) -> None:
        """Store decisions made in this process: the probability that ``first`` is better, or None."""
        decided = list(zip(comparisons, probabilities, strict=True))
        with self._lock:  # so that the next receive() returns every label that the ledger counts
            self._ledger.decide([(each.uuid, decision_of(value), value) for each, value in decided])
            self._arrived += [Preference(one.uuid, one.first, one.second, value) for one, value in decided]

    def receive(self) -> list[Preference]:
        """Return the preferences decided or revised since the last call, without blocking.

        A value of None means that the comparison's earlier preference is withdrawn: the caller must remove
        that preference from the dataset.
        """
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def status(self) -> CollectorStatus:
        """Return the latest status reported by the site."""
        return CollectorStatus()

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        """Show training progress to labelers, if there are any.

        Args:
            point: metrics, keyed by TensorBoard tag.
            waiting_for: number of labels that training is waiting for; None if training is not waiting.
        """

    def show(self, film: Path, step: int) -> None:
        """Show labelers a video of a whole episode, recorded at environment step ``step``; thread-safe."""

    def finish(self) -> None:
        """Tell labelers that training is complete; retry for a few seconds if the site is offline."""
        self.close()

    def close(self) -> None:
        """Stop collecting labels; submitted comparisons stay in the ledger."""


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

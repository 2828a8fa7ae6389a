"""Sources of labels: the base class of collectors, and the one that asks a judge instead of people."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from teacher.data.decisions import SiteState
from teacher.data.ledger import Answered, Ledger, Question, Role
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.queries.judges import Judge, ScriptedTeacher, oracle
from teacher.queries.kinds import KINDS, Follower, kinds_of
from teacher.queries.kinds.base import Check, Decided
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import FeedbackName, KindName
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
    """Base class of label sources, which take questions about segments and later return preferences."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._follower = Follower(ledger)
        self._lock = threading.Lock()
        self._arrived: list[Preference] = []

    def submit(
        self,
        questions: Sequence[tuple[Segment, ...]],
        phase: Role,
        step: int,
        kind: KindName = "pair",
        reasons: Sequence[str] = (),
    ) -> None:
        """Write questions to the ledger and submit them for labeling, without waiting for the network.

        Args:
            questions: the items of each question.
            phase: ``pretraining`` or ``training``, or ``gold`` for attention checks, which detect careless
                labelers and never return a preference.
            reasons: why each question was selected, as :func:`~teacher.queries.selection.reasons_for` says
                it; empty if not known.
        """
        raise NotImplementedError

    def submit_checks(self, checks: Sequence[Check], step: int, kind: KindName = "pair") -> None:
        """Submit attention checks, which detect careless labelers and never return a preference."""
        self.submit([items for items, _ in checks], "gold", step, kind)

    def _write(
        self,
        questions: Sequence[tuple[Segment, ...]],
        phase: Role,
        step: int,
        kind: KindName = "pair",
        uuid: Callable[[], UUID] = uuid4,
    ) -> list[Question]:
        written = [Question(uuid(), items, phase, step, kind) for items in questions]
        self._ledger.write(written)
        return written

    def _decide(self, questions: Sequence[Question], decided: Sequence[Decided]) -> None:
        """Store answers given in this process."""
        answers = [(each.uuid, *answer) for each, answer in zip(questions, decided, strict=True)]
        with self._lock:  # so that the next receive() returns every label that the ledger counts
            self._ledger.decide(answers)
            self._follow(
                Answered(each.uuid, each.kind, each.items, *answer)
                for each, answer in zip(questions, decided, strict=True)
            )

    def _follow(self, answered: Iterable[Answered]) -> None:
        """Add the preferences that follow from new decisions to those that have arrived."""
        self._arrived += self._follower.changes(answered)

    def receive(self) -> list[Preference]:
        """Return the preferences decided or revised since the last call, without blocking.

        A value of None means that an earlier preference is withdrawn: the caller must remove it from the
        dataset.
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

    def show(self, film: Path, step: int, episode: Trajectory) -> None:
        """Show labelers a video of a whole episode, recorded at environment step ``step``; thread-safe."""

    def explain(self, predictor: RewardPredictor, fits: int, step: int) -> None:
        """Show researchers which rewards the predictor predicts, if that changed since the last call.

        Args:
            fits: number of the predictor's fits.
            step: current environment step.
        """

    def finish(self) -> None:
        """Tell labelers that training is complete; retry for a few seconds if the site is offline."""
        self.close()

    def close(self) -> None:
        """Stop collecting labels; submitted comparisons stay in the ledger."""


def scripted_judge(
    error_model: ErrorModel,
    seed: int,
    ledger: Ledger,
    pool: SegmentPool | None = None,
    feedback: FeedbackName = "pair",
) -> ScriptedTeacher:
    """Return the run's scripted teacher.

    If its answers depend on earlier ones, the teacher is initialized with the questions already answered in
    ``ledger``. ``pool`` has the segments collected in training; None if the teacher can't see them.
    """
    fewest = min(kind.size for kind in kinds_of(feedback))
    remembers = error_model.has_thresholds or feedback != "pair"
    seen = ledger.decided_items(RETURNS_REMEMBERED // fewest) if remembers else ()
    return ScriptedTeacher(error_model, seed, seen, pool)


class SyntheticTeacher(Collector):
    """Collector that answers every question immediately.

    The questions' UUIDs depend only on ``seed`` and their order, so that runs are reproducible. If a killed
    run left questions open, the constructor answers them.

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

    def submit(
        self,
        questions: Sequence[tuple[Segment, ...]],
        phase: Role,
        step: int,
        kind: KindName = "pair",
        reasons: Sequence[str] = (),
    ) -> None:
        """Write questions to the ledger, and answer them."""
        uuids = (uuid5(NAMESPACE_URL, f"{self._name}/{index}") for index in count(self._ledger.total()))
        self._answer(self._write(questions, phase, step, kind, uuids.__next__))

    def _answer(self, questions: Sequence[Question]) -> None:
        """Answer questions; if the judge fails, keep the answers given so far."""
        answers: list[Decided] = []
        try:
            for question in questions:
                answers.append(KINDS[question.kind].judge(self._judge, question.items))
        finally:
            self._decide(questions[: len(answers)], answers)

"""Preference learning shared by ``teach``, the wrappers and offline learning: labels, and fits to them."""

import contextlib
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from teacher.data.checkpoint import State
from teacher.data.decisions import Phase
from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import UndecidedError
from teacher.queries.collector import Collector, CollectorStatus
from teacher.queries.kinds import KINDS, preferences_in
from teacher.queries.kinds.base import Kind
from teacher.queries.schedules import LabelSchedule
from teacher.queries.selection import Ensemble, Selector, reasons_for
from teacher.queries.study import Study
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.options import QueryConfig

FINAL_ROUNDS = 50
MIN_OPEN_COMPARISONS = 20
OPEN_COMPARISONS_PER_LABELER = 4
_FEWEST_TO_WARN = 10  # "can't tell" decisions
_LONGER = "change the prompt to something visible in the segments, or make segments longer"
_FRESH = 100  # labels; maximum for :attr:`PreferenceLearning.fresh_accuracy`
_PARTS = ("schedule", "select", "loss")  # that Python code may set
_FEW = 10  # labels; minimum for :attr:`PreferenceLearning.fresh_accuracy`


@dataclass(frozen=True)
class Submitted:
    """Questions submitted by one call to :meth:`Asking.submit`.

    Attributes:
        questions: the items of each question.
        segments: number of segments in the pool.
    """

    questions: Sequence[tuple[Segment, ...]]
    segments: int

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def repeats_segments(self) -> bool:
        """Return True if a segment is in more than one question because the pool has too few segments."""
        items = [item for question in self.questions for item in question]
        return len(set(items)) < len(items)

    def warning(self, remedy: str) -> str:
        """Return a warning that some segments are in several comparisons, with ``remedy`` as advice."""
        return (
            f"{self.segments} segments are too few for {len(self)} comparisons, so some segments "
            f"are in several comparisons; {remedy}"
        )


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

    def warning(self, status: CollectorStatus) -> str:
        """Return a warning that all labels so far are "can't tell", with advice."""
        return (
            f'all {self.only_cant_tell} labels so far are "can\'t tell", so nothing is learned from them; '
            f"{status.remedy or _LONGER}"
        )


@dataclass
class Asking:
    """Submits questions about segments and adds the resulting preferences to a dataset.

    The caller must decide when to call each method, and must report the results to the user. The ledger's
    preferences are added to the dataset at once.

    Attributes:
        dataset: the preferences received so far, or loaded from a file.
        collector: label source; comparisons are submitted to it, and preferences are received from it.
        queries: query selection settings; None to select uniformly at random.
        kinds: kinds of the questions, which take turns.
        select: function that selects the items of questions; by default, that of the first kind.
        earlier: number of labels loaded from a file; these count as already requested.
        seconds: training time in seconds, used by time-based schedules.
        unfitted: number of preferences added, changed or dropped since the last fit.
    """

    ledger: Ledger
    dataset: PreferenceDataset
    pool: SegmentPool
    schedule: LabelSchedule
    collector: Collector = field(kw_only=True)
    queries: QueryConfig | None = field(default=None, kw_only=True)
    kinds: Sequence[Kind] = field(default=(KINDS["pair"],), kw_only=True)
    select: Selector = field(init=False)
    earlier: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    unfitted: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.select = self.kinds[0].select
        self.dataset.upsert(preferences_in(self.ledger))
        self.unfitted = len(self.dataset)

    def reopened(self, ledger: Ledger) -> None:
        """Use a ledger that was opened again, and add the labels that it has got meanwhile."""
        self.ledger = ledger
        self.unfitted += self.dataset.upsert(preferences_in(ledger))

    @property
    def size(self) -> int:
        """Return the number of segments in a question of the largest kind."""
        return max(kind.size for kind in self.kinds)

    def shares(self, count: int) -> list[tuple[Kind, int]]:
        """Return the kinds of the next ``count`` questions, with the number of questions of each."""
        before = self.ledger.total() if len(self.kinds) > 1 else 0
        turns = Counter((before + place) % len(self.kinds) for place in range(count))
        return [(self.kinds[turn], share) for turn, share in sorted(turns.items())]

    @property
    def asked(self) -> int:
        """Return the number of labels requested or loaded, not counting "can't tell" decisions."""
        return self.earlier + self.ledger.asked()

    @property
    def answered(self) -> int:
        """Return the number of labels received or loaded, not counting "can't tell" decisions."""
        return len(self.dataset) if self.dataset.one_each else self.earlier + self.ledger.usable()

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
        """Select up to ``count`` questions from the pool, submit them, and return them.

        Args:
            count: number of comparisons; fewer are submitted if the pool runs out of new pairs.
            predictor: ensemble for active selection; None selects pairs at random.
            shown: function that maps each selected segment to the segment shown to labelers; None shows
                segments unchanged.
        """
        submitted: list[tuple[Segment, ...]] = []
        for kind, share in self.shares(count):
            select = self.select if kind is self.kinds[0] else kind.select
            questions = select(self.pool, share, self.queries, predictor)
            self.pool.remember(questions)
            if questions:
                sent = questions if shown is None else [tuple(map(shown, items)) for items in questions]
                known = select == kind.select
                reasons = reasons_for(questions, self.queries, predictor) if known else ()
                self.collector.submit(sent, phase, step, kind.name, reasons)
            submitted += questions
        return Submitted(submitted, len(self.pool))

    def submit_checks(
        self, pool: SegmentPool, share: float, value: Callable[[Segment], float], step: int
    ) -> None:
        """Submit attention checks until the ratio of checks to requested comparisons is ``share``.

        Args:
            share: ratio of attention checks to requested comparisons; if 0, submit none.
            value: function that scores a segment, for example by its true return; questions to which the
                answer is clear become attention checks.
        """
        if share == 0:
            return
        missing = math.floor(share * self.ledger.asked()) - self.ledger.gold()
        for kind, part in self.shares(missing):
            checks = kind.checks(pool, part, self.queries or QueryConfig(), value)
            if checks:
                self.collector.submit_checks(checks, step, kind.name)

    def submit_rest(self, submit: Callable[[], Sized]) -> None:
        """Call ``submit`` repeatedly to replace comparisons that were labeled "can't tell".

        Used at the end of a run, when no later round will request the missing labels. Stops when ``submit``
        returns an empty result, after 50 calls, or when a scripted teacher skips too many pairs in a row.
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
        decisions = len({each.question or each.uuid for each in preferences})
        if not preferences or len(self.dataset):
            return Received(decisions)
        count = self.ledger.cant_tell()
        return Received(decisions, count if count >= _FEWEST_TO_WARN else 0)


@dataclass
class PreferenceLearning(Asking):
    """Requests labels, receives them, and fits the reward predictor to them.

    Attributes:
        study: what is measured of each kind of question; None if they are not compared.
        pretrained: True if the predictor was fitted to the pretraining labels.
        forgotten: number of comparisons that existed when the restored checkpoint was saved but are missing
            from the ledger.
    """

    predictor: RewardPredictor
    study: Study | None = field(default=None, kw_only=True)
    fits: int = field(default=0, init=False)
    pretrained: bool = field(default=False, init=False)
    _restored: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    forgotten: int = field(default=0, init=False)
    _agreed: deque[bool] = field(default_factory=lambda: deque(maxlen=_FRESH), init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._configured = self.schedule, self.select

    @property
    def _own(self) -> frozenset[str]:
        """Return the names of the parts that were set in Python code."""
        schedule, select = self._configured
        own = self.schedule is not schedule, self.select != select, self.predictor.own_loss
        return frozenset(itertools.compress(_PARTS, own))

    @property
    def lost(self) -> frozenset[str]:
        """Return the parts that were set in Python code before the run was restored, and were not set again.

        They are among ``schedule``, ``select`` and ``loss``; a checkpoint can't save them.
        """
        return self._restored - self._own

    def receive(self) -> Received:
        """Receive new preferences, record the predictor's agreement with each, and add them to the dataset.

        Returns:
            The decision counts.
        """
        preferences = self.collector.receive()
        self._compare(preferences)
        return self._take(preferences)

    def _compare(self, preferences: Sequence[Preference]) -> None:
        """Record whether the predictor agrees with each new preference; do nothing before the first fit."""
        if self.predictor.env_id is None:
            return
        fresh = [each for each in preferences if each.uuid not in self.dataset]
        if strict := [each for each in fresh if each.value not in (None, 0.5)]:
            self._agreed.extend(self.predictor.agrees(strict).tolist())

    @property
    def fresh_accuracy(self) -> float:
        """Return the predictor's accuracy on the newest labels, measured before it was fitted to them.

        Uses the last 100 labels other than ``equal``; NaN if there are fewer than ten.
        """
        return float(np.mean(self._agreed)) if len(self._agreed) >= _FEW else math.nan

    @property
    def stale(self) -> bool:
        """Return True if enough preferences were added or changed since the last fit to justify a refit."""
        return self.unfitted > 0 and self.unfitted >= self.predictor.config.refit_after * len(self.dataset)

    def fit(self, **limits: Any) -> FitReport:
        """Fit the predictor to all preferences; ``limits`` are passed to :meth:`RewardPredictor.fit`."""
        report = self.predictor.fit(self.dataset, **limits)
        self.unfitted, self.fits = 0, self.fits + 1
        return report

    def explain(self, step: int) -> None:
        """Show researchers which rewards the fitted predictor predicts, at environment step ``step``."""
        if len(self.dataset):
            self.collector.explain(self.predictor, self.fits, step)

    def state_dict(self) -> State:
        """Return the state to save in a checkpoint, without the dataset, which the ledger already stores."""
        return {
            "predictor": self.predictor.state_dict(),
            "pool": self.pool.state_dict(),
            "seconds": self.seconds,
            "pretrained": self.pretrained,
            **{f"own_{name}": True for name in self._own},
            "comparisons": self.ledger.total(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state from :meth:`state_dict`. The caller must load the dataset from the ledger first."""
        self.predictor.load_state_dict(state["predictor"])
        self.pool.load_state_dict(state["pool"])
        self.seconds = state["seconds"]
        self.pretrained = state["pretrained"]
        self._restored = frozenset(name for name in _PARTS if state.get(f"own_{name}", False))
        self.forgotten = max(0, state.get("comparisons", 0) - self.ledger.total())

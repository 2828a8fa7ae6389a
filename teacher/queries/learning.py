"""Learning from preferences: the process shared by ``teach``, the wrapper and offline learning."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from teacher.data.checkpoint import State
from teacher.data.preferences import Preference
from teacher.queries.asking import Asking, Received, TallyT
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport

_FRESH = 100  # newest labels for :attr:`PreferenceLearning.fresh_accuracy`
_FEW = 10  # labels needed for a meaningful accuracy


@dataclass
class PreferenceLearning(Asking[TallyT]):
    """Asks for labels and fits the reward predictor to them; :class:`Asking` does the asking.

    Attributes:
        predictor: the predictor to fit.
        fits: fits so far, in this process.
        pretrained: True once the predictor was fitted to the pretraining labels.
        schedule_lost: True if the restored run had a schedule set from Python, which checkpoints don't keep.
        forgotten: comparisons that were in the ledger when the restored state was saved, but no longer are.
    """

    predictor: RewardPredictor
    fits: int = field(default=0, init=False)
    pretrained: bool = field(default=False, init=False)
    schedule_lost: bool = field(default=False, init=False)
    forgotten: int = field(default=0, init=False)
    _agreed: deque[bool] = field(default_factory=lambda: deque(maxlen=_FRESH), init=False, repr=False)

    def __post_init__(self) -> None:
        self._configured = self.schedule

    @property
    def has_own_schedule(self) -> bool:
        """Return True if the schedule was replaced since construction."""
        return self.schedule is not self._configured

    def receive(self) -> Received:
        """Add the decisions made since the last call, after comparing the predictor with them."""
        preferences = self.collector.receive()
        self._compare(preferences)
        return self._take(preferences)

    def _compare(self, preferences: Sequence[Preference]) -> None:
        """Record for each new preference whether the predictor, if already fitted, agrees."""
        if self.predictor.env_id is None:
            return
        fresh = [(each, each.value) for each in preferences if each.uuid not in self.dataset]
        strict = [(each, value) for each, value in fresh if value is not None and value != 0.5]
        if strict:
            first = self.predictor.segment_returns([each.first for each, _ in strict])
            second = self.predictor.segment_returns([each.second for each, _ in strict])
            wanted = np.array([value for _, value in strict]) > 0.5
            self._agreed.extend(((first > second) == wanted).tolist())

    @property
    def fresh_accuracy(self) -> float:
        """Return the predictor's accuracy on the newest labels, measured before it was fitted to them.

        Uses the last 100 labels at most, without ``equal``; NaN for fewer than ten.
        """
        return float(np.mean(self._agreed)) if len(self._agreed) >= _FEW else math.nan

    @property
    def stale(self) -> bool:
        """Return True if enough preferences are new to justify a fit."""
        return self.unfitted > 0 and self.unfitted >= self.predictor.config.refit_after * len(self.dataset)

    def fit(self, **limits: Any) -> FitReport:
        """Fit the predictor to all preferences; ``limits`` as in :meth:`RewardPredictor.fit`."""
        report = self.predictor.fit(self.dataset, **limits)
        self.unfitted, self.fits = 0, self.fits + 1
        return report

    def state_dict(self) -> State:
        """Return everything that a restored run needs, except the dataset, which is in the ledger."""
        return {
            "predictor": self.predictor.state_dict(),
            "pool": self.pool.state_dict(),
            "seconds": self.seconds,
            "pretrained": self.pretrained,
            "own_schedule": self.has_own_schedule,
            "comparisons": self.ledger.total(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore :meth:`state_dict`."""
        self.predictor.load_state_dict(state["predictor"])
        self.pool.load_state_dict(state["pool"])
        self.seconds = state["seconds"]
        self.pretrained = state["pretrained"]
        self.schedule_lost = state.get("own_schedule", False)
        self.forgotten = max(0, state.get("comparisons", 0) - self.ledger.total())
        self.unfitted = len(self.dataset)  # the ledger may hold labels newer than the checkpoint

"""Preference learning shared by ``teach`` and the wrapper: requesting labels and fitting to them."""

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

_FRESH = 100  # labels; maximum for :attr:`PreferenceLearning.fresh_accuracy`
_FEW = 10  # labels; minimum for :attr:`PreferenceLearning.fresh_accuracy`


@dataclass
class PreferenceLearning(Asking[TallyT]):
    """Requests labels, receives them, and fits the reward predictor to them.

    Attributes:
        predictor: the predictor to fit.
        fits: number of times that this process has fitted the predictor.
        pretrained: True if the predictor was fitted to the pretraining labels.
        schedule_lost: True if the restored run had a schedule set in Python code, which a checkpoint can't
            save.
        forgotten: number of comparisons that existed when the restored checkpoint was saved but are missing
            from the ledger.
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
        """Return True if the schedule was replaced after construction."""
        return self.schedule is not self._configured

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

    def state_dict(self) -> State:
        """Return the state to save in a checkpoint, without the dataset, which the ledger already stores."""
        return {
            "predictor": self.predictor.state_dict(),
            "pool": self.pool.state_dict(),
            "seconds": self.seconds,
            "pretrained": self.pretrained,
            "own_schedule": self.has_own_schedule,
            "comparisons": self.ledger.total(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state from :meth:`state_dict`. The caller must load the dataset from the ledger first."""
        self.predictor.load_state_dict(state["predictor"])
        self.pool.load_state_dict(state["pool"])
        self.seconds = state["seconds"]
        self.pretrained = state["pretrained"]
        self.schedule_lost = state.get("own_schedule", False)
        self.forgotten = max(0, state.get("comparisons", 0) - self.ledger.total())
        self.unfitted = len(self.dataset)  # the ledger may hold labels newer than the checkpoint

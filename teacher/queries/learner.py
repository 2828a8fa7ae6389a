"""What turns answers into a reward predictor: those who answer, what they said, and what is fitted to it."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.queries.collector import Collector
from teacher.reward.predictor import RewardPredictor

MIN_OPEN_COMPARISONS = 20
OPEN_COMPARISONS_PER_LABELER = 4
_FRESH = 100  # of the newest labels, the predictor is compared with
_FEW = 10  # of these tell nothing yet
_MANY = 10  # answers of one kind, after which it is time to say so


@dataclass
class PreferenceLearner:
    """Takes in answers and learns from them; when, and what is asked, is for others to say.

    Attributes:
        unfitted: answers, new or changed, that the predictor was not fitted on.
        diverged: whether the last fit came to numbers that are none.
        settled: whether the last fit settled that squares and logarithms are read.
        undecided: whether no answer of the last fit said which of two segments is the better one.
        doubt: what keeps the predictor from telling the steps of the answers apart; empty where all is well.
        changed: whether the predictor was fitted since the agent was last trained on its rewards.
        predicted: whether the predictor said what each of the last labels says, before it was fitted on them.
    """

    ledger: Ledger
    collector: Collector
    dataset: PreferenceDataset
    predictor: RewardPredictor
    unfitted: int = field(default=0, kw_only=True)
    diverged: bool = field(default=False, kw_only=True)
    settled: bool = field(default=False, kw_only=True)
    undecided: bool = field(default=False, kw_only=True)
    doubt: str = field(default="", kw_only=True)
    changed: bool = field(default=False, kw_only=True)
    predicted: deque[bool] = field(default_factory=lambda: deque(maxlen=_FRESH), kw_only=True)

    def receive(self) -> bool:
        """Take in the answers that have come since the last call; whether there were any."""
        preferences = self.collector.receive()
        self._compare_with(preferences)
        self.unfitted += self.dataset.upsert(preferences)
        return bool(preferences)

    def _compare_with(self, preferences: Sequence[Preference]) -> None:
        """Note of each new preference whether the predictor, if it was ever fitted, says the same."""
        if self.predictor.env_id is None:
            return
        fresh = [(each, each.value) for each in preferences if each.uuid not in self.dataset]
        told = [(each, value) for each, value in fresh if value is not None and value != 0.5]
        if told:
            first = self.predictor.segment_returns([each.first for each, _ in told])
            second = self.predictor.segment_returns([each.second for each, _ in told])
            wanted = np.array([value for _, value in told]) > 0.5
            self.predicted.extend(((first > second) == wanted).tolist())

    @property
    def fresh_accuracy(self) -> float:
        """How often the predictor said what the last labels say, before it was fitted on them.

        Of at most the last 100, those for equal left out; NaN before the tenth.
        """
        return float(np.mean(self.predicted)) if len(self.predicted) >= _FEW else math.nan

    @property
    def silence(self) -> str | None:
        """What to say where all of many answers are that nobody can tell; None where all is well."""
        count = 0 if len(self.dataset) else self.ledger.cant_tell()
        if count < _MANY:
            return None
        remedy = self.collector.status.remedy or "ask something that segments show, or about longer ones"
        return (
            f"all {count} answers so far are that nobody can tell, and nothing is learned from them; {remedy}"
        )

    @property
    def stale(self) -> bool:
        """Whether there are so many answers to learn from that fitting to all anew is worth its time."""
        return self.unfitted > 0 and self.unfitted >= self.predictor.config.refit_after * len(self.dataset)

    @property
    def open_cap(self) -> int:
        """How many comparisons of the present policy may be open, so that people judge recent behaviour."""
        labelers = self.collector.status.active_labelers or 0
        return max(MIN_OPEN_COMPARISONS, OPEN_COMPARISONS_PER_LABELER * labelers)

    def fit(self, **limits: Any) -> dict[str, float]:
        """Fit the predictor on all answers; its TensorBoard values."""
        report = self.predictor.fit(self.dataset, **limits)
        self.unfitted, self.changed = 0, True
        self.diverged, self.settled = report.diverged, report.settled
        self.undecided, self.doubt = report.undecided, report.doubt
        return {
            "predictor/loss": report.loss,
            "predictor/validation_loss": report.validation_loss,
            "predictor/true_reward_loss": report.true_loss,
            "predictor/accuracy": report.accuracy,
        }

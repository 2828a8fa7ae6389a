"""Summary of a reward fit."""

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from teacher.reward.fitting import PairEvaluation
from teacher.reward.loss import preference_loss
from teacher.reward.pairs import Pairs

SETTLED = "The predictor reads squares and logarithms: they order held-out labels clearly better."
UNDECIDED = (
    "no label that the predictor is fitted to prefers either segment, so its predictions mean nothing; give "
    "labels that do"
)
_SCALES = tuple(0.05 * 1.2**power for power in range(21))  # to 1.9


@dataclass(frozen=True)
class FitReport:
    """Results of a fit; NaN where there was nothing to measure.

    Attributes:
        updates: optimizer steps made; 0 if every member holds all pairs out, and nothing was learned.
        loss: mean over members of the loss on their training pairs.
        validation_loss: mean over members of the loss on their held-out pairs.
        accuracy: share of held-out pairs where a member predicts the label. An ``equal`` pair counts as right
            if the predicted probability is closer to one half than to 0 and 1, any other if the preferred
            side has more than one half.
        true_loss: loss of all pairs with the true rewards as predictions, for reference. Wrong labels, and
            true rewards on another scale than the likelihood's, keep it above 0.
        order_loss: mean loss of all members' held-out pairs, with the predicted returns multiplied by the
            factor, between 0.05 and 1.9, that minimizes it: the quality of the order, independent of
            overconfidence.
        diverged: the fit reached NaN or infinity, and the previous weights were kept.
        settled: this fit decided to read squares and logarithms.
        undecided: no label that a member was fitted to prefers a side, so predictions mean nothing.
        doubt: why the predictor can't tell the labeled steps apart; empty if it can.
    """

    updates: int = 0
    loss: float = nan
    validation_loss: float = nan
    accuracy: float = nan
    true_loss: float = nan
    order_loss: float = nan
    diverged: bool = False
    settled: bool = False
    undecided: bool = False
    doubt: str = ""

    @property
    def scalars(self) -> dict[str, float]:
        """Return the TensorBoard scalars of the fit, by tag."""
        return {
            "predictor/loss": self.loss,
            "predictor/validation_loss": self.validation_loss,
            "predictor/true_reward_loss": self.true_loss,
            "predictor/accuracy": self.accuracy,
        }

    def problems(self, learning_rate: str) -> dict[str, str]:
        """Return warnings by topic.

        Args:
            learning_rate: name of the setting to mention, such as ``--reward.learning_rate``.
        """
        diverged = f"reward fit diverged (NaN); kept the previous weights; try a smaller {learning_rate}"
        told = {
            "divergence": diverged if self.diverged else "",
            "undecided": UNDECIDED if self.undecided else "",
            "doubt": self.doubt,
        }
        return {about: text for about, text in told.items() if text}


def report_of(updates: int, evaluation: PairEvaluation, pairs: Pairs, noise: float) -> FitReport:
    """Return the report of a fit to ``pairs`` that assumed label noise ``noise``."""
    true_returns = pairs.true_returns
    true_logits = true_returns[:, 0] - true_returns[:, 1]
    return FitReport(
        updates,
        float(evaluation.training.nanmean()),
        float(evaluation.validation.nanmean()),
        _accuracy(evaluation.logits, pairs, noise),
        float(preference_loss(true_logits, pairs.values, noise).mean()),
        _order_loss(evaluation.logits, pairs, noise),
        undecided=not bool(((pairs.values != 0.5) & (pairs.weights > 0)).any()),
    )


def chance_of_first(logits: Tensor, noise: float) -> Tensor:
    """Return the probability of a label for the first segment when a share ``noise`` of labels is random."""
    return (1 - noise) * torch.sigmoid(logits) + noise / 2


def is_right(predicted: Tensor, values: Tensor) -> Tensor:
    """Return a mask of predicted probabilities that agree with the labels; see :attr:`FitReport.accuracy`."""
    undecided = (predicted - 0.5).abs() < 0.25
    on_its_side = (predicted > 0.5) == (values > 0.5)
    return torch.where(values == 0.5, undecided, on_its_side)


def _order_loss(logits: Tensor, pairs: Pairs, noise: float) -> float:
    held_out = pairs.weights == 0
    logits, values = logits[held_out], pairs.values.expand_as(held_out)[held_out]
    return min(float(preference_loss(scale * logits, values, noise).mean()) for scale in _SCALES)


def _accuracy(logits: Tensor, pairs: Pairs, noise: float) -> float:
    right = is_right(chance_of_first(logits, noise), pairs.values)
    return float(right[pairs.weights == 0].float().mean())

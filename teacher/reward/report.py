"""How a fit came out, in a few numbers."""

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from teacher.reward.fitting import PairEvaluation
from teacher.reward.loss import preference_loss
from teacher.reward.pairs import Pairs

SETTLED = "The predictor reads squares and logarithms: they order the answers held out clearly better."
UNDECIDED = (
    "no answer that the predictor is fitted to says which of two segments is the better one, so what it "
    "predicts means nothing; give answers that do"
)
_SCALES = tuple(0.05 * 1.2**power for power in range(21))  # to 1.9


@dataclass(frozen=True)
class FitReport:
    """How a fit came out; NaN where there was nothing to measure.

    Attributes:
        updates: optimizer steps made; 0 where every member holds all pairs out, and the fit taught nothing.
        loss: mean over members of the loss on their training pairs.
        validation_loss: mean over members of the loss on the pairs held out from them.
        accuracy: share of held-out pairs of which members say what the label does. An ``equal`` pair counts
            as right where the predicted probability is nearer to one half than to 0 and 1, any other where
            the side that the label prefers has more than one half.
        true_loss: the loss of all pairs with the true rewards for predictions, a yardstick. Labels that err
            and rewards of another scale than the likelihood's leave it above 0.
        order_loss: mean loss of the held-out pairs of all members, their predicted returns multiplied by what
            makes it smallest, between 0.05 and 1.9: how well pairs are ordered, whether members are too sure
            of that or not.
        diverged: the fit reached NaN or infinity, and the previous weights were kept.
        settled: in this fit it was settled that squares and logarithms are read.
        undecided: no answer that a member was fitted to prefers a side, so the predictor means nothing.
        doubt: what keeps the predictor from telling the steps of the answers apart; empty where all is well.
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
        """The TensorBoard scalars of the fit, by tag."""
        return {
            "predictor/loss": self.loss,
            "predictor/validation_loss": self.validation_loss,
            "predictor/true_reward_loss": self.true_loss,
            "predictor/accuracy": self.accuracy,
        }

    def problems(self, learning_rate: str) -> dict[str, str]:
        """Return what to warn of, by topic.

        Args:
            learning_rate: how the reader sets it, such as ``--reward.learning_rate``.
        """
        diverged = f"reward fit diverged (NaN); kept the previous weights; try a smaller {learning_rate}"
        told = {
            "divergence": diverged if self.diverged else "",
            "undecided": UNDECIDED if self.undecided else "",
            "doubt": self.doubt,
        }
        return {about: text for about, text in told.items() if text}


def report_of(updates: int, evaluation: PairEvaluation, pairs: Pairs, noise: float) -> FitReport:
    """The report of a fit to ``pairs``, which assumed ``noise`` in their labels."""
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
    """How probable an answer for the first segment is, where a share ``noise`` of answers is random."""
    return (1 - noise) * torch.sigmoid(logits) + noise / 2


def is_right(predicted: Tensor, values: Tensor) -> Tensor:
    """Which predicted probabilities say what the answers do; see :attr:`FitReport.accuracy`."""
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

"""Metrics and warnings about one fit of the reward predictor."""

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from teacher.reward.fitting import FitResult, PairEvaluation, Result, held_out_weights, weighted_mean
from teacher.reward.loss import preference_loss
from teacher.reward.pairs import Pairs

UNDECIDED = (
    "no label used for fitting prefers either segment, so the predicted rewards are meaningless; add labels "
    "that prefer one segment"
)
_MANY_CONTRADICTIONS = 0.1  # share of labels; a warning is given if it is surely higher
_MANY_TIES = 0.5  # share of ties; a warning is given above it
_SCALES = tuple(0.05 * 1.2**power for power in range(21))  # 0.05 to 1.9
_FEWEST = 50  # labels; fewer say too little
_BELOW_BEST = 1.35  # nats; half the 90% quantile of chi-squared(1), as in a likelihood ratio test
_RETURN_SCALES = torch.logspace(-1.5, 1, 12)
_NOISE = torch.linspace(0, 0.98, 50)
_SMALLEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Contradictions:
    """Share of held-out labels that contradict the reward models.

    It is not the share of wrong labels. The models learn mistakes that depend on what they see, such as a
    preference reversed wherever a pendulum is high, so these labels agree with them. And a label is not wrong
    because the models can't express what it prefers.

    Attributes:
        share: maximum likelihood estimate, from 0 to 0.49.
        at_least: lower end of a 90% likelihood interval; above it, close calls can't explain the labels.
    """

    share: float
    at_least: float


@dataclass(frozen=True, eq=False)
class FitReport(Result):
    """Metrics of one fit; NaN where there was nothing to measure.

    Attributes:
        updates: optimizer steps made, or Newton steps of all members for linear models; 0 if every member
            holds out all pairs, so nothing was learned.
        loss: training loss in nats, averaged over the members.
        validation_loss: loss on held-out pairs in nats, averaged over the members.
        accuracy: fraction of held-out labels predicted correctly, pooled over the members. A prediction is
            correct if the preferred segment's predicted probability is above 0.5 or, for the label ``equal``,
            between 0.25 and 0.75.
        true_loss: for reference, the loss on all pairs if true rewards are used as predictions. It is high
            if labels are wrong or true rewards have a different scale than the Bradley-Terry model assumes.
        order_loss: loss on held-out pairs after temperature scaling, which multiplies predicted returns by
            the best factor from 0.05 to 1.9. It measures how well returns are ranked, regardless of
            overconfidence.
        ties: share of labels that prefer neither segment.
        contradictions: share of labels that contradict predictions from the other labels; None if too few
            labels are held out.
        dropped: share of labels that linear models left out of the fit because they contradict them, averaged
            over the members; NaN with networks, and with fewer than four labels per weight.
        diverged: True if the fit produced NaN or infinity and the last good weights were kept.
        choice: message about the kind of reward model that this fit chose; empty if it was kept.
        undecided: True if no label used for fitting is a strict preference, so predictions are meaningless.
        doubt: warning that the features are nearly constant across the labeled steps, or rounded too coarsely
            to distinguish the steps; otherwise an empty string.
    """

    updates: int = 0
    loss: float = nan
    validation_loss: float = nan
    accuracy: float = nan
    true_loss: float = nan
    order_loss: float = nan
    ties: float = nan
    contradictions: Contradictions | None = None
    dropped: float = nan
    diverged: bool = False
    choice: str = ""
    undecided: bool = False
    doubt: str = ""

    @property
    def scalars(self) -> dict[str, float]:
        """Return the fit's TensorBoard scalars, keyed by tag."""
        return {
            "predictor/loss": self.loss,
            "predictor/validation_loss": self.validation_loss,
            "predictor/true_reward_loss": self.true_loss,
            "predictor/accuracy": self.accuracy,
            "predictor/contradictions": nan if self.contradictions is None else self.contradictions.share,
            "predictor/dropped_labels": self.dropped,
        }

    def problems(self, learning_rate: str) -> dict[str, str]:
        """Return warnings about the fit, keyed by topic; empty if there are none.

        Args:
            learning_rate: name of the learning rate setting, such as ``--reward.learning_rate``.
        """
        diverged = (
            "the reward fit diverged (NaN), so the previous weights were kept; check the observations for "
            f"extreme values, or try a smaller {learning_rate} if the reward models are networks"
        )
        texts = {
            "divergence": diverged if self.diverged else "",
            "undecided": UNDECIDED if self.undecided else "",
            "contradictions": self._many_contradictions(),
            "ties": self._many_ties(),
            "doubt": self.doubt,
        }
        return {about: text for about, text in texts.items() if text}

    def _many_ties(self) -> str:
        if self.undecided or not self.ties > _MANY_TIES:
            return ""
        return (
            f"{self.ties:.0%} of the labels are ties, from which little can be learned; use longer segments, "
            "or collect fewer labels before training, when segments look alike"
        )

    def _many_contradictions(self) -> str:
        if self.contradictions is None or self.contradictions.at_least < _MANY_CONTRADICTIONS:
            return ""
        return (
            f"about {self.contradictions.share:.0%} of the labels contradict predictions from the others: "
            "they are wrong, or the models can't express what they prefer; check some, and collect more"
        )


def report_of(fit: FitResult, evaluation: PairEvaluation, pairs: Pairs, noise: float) -> FitReport:
    """Return the report on a completed fit."""
    true_returns = pairs.true_returns
    true_logits = true_returns[:, 0] - true_returns[:, 1]
    return FitReport(
        fit.updates,
        float(evaluation.training.nanmean()),
        float(evaluation.validation.nanmean()),
        _accuracy(evaluation.logits, pairs, noise),
        float(weighted_mean(preference_loss(true_logits, pairs.values, noise), pairs.importance)),
        _order_loss(evaluation.logits, pairs, noise),
        float(weighted_mean((pairs.values == 0.5).float(), pairs.importance)),
        _contradictions(evaluation.logits, pairs),
        fit.dropped,
        undecided=not bool(((pairs.values != 0.5) & (pairs.weights > 0)).any()),
    )


def chance_of_first(logits: Tensor, noise: float) -> Tensor:
    """Return the probability that a labeler prefers the first segment.

    Labelers are assumed to choose at random with probability ``noise``.
    """
    return (1 - noise) * torch.sigmoid(logits) + noise / 2


def is_right(predicted: Tensor, values: Tensor) -> Tensor:
    """Return a mask of the correct predictions, as defined in :attr:`FitReport.accuracy`."""
    undecided = (predicted - 0.5).abs() < 0.25
    on_its_side = (predicted > 0.5) == (values > 0.5)
    return torch.where(values == 0.5, undecided, on_its_side)


def _order_loss(logits: Tensor, pairs: Pairs, noise: float) -> float:
    weights = held_out_weights(pairs)
    held_out = weights > 0
    logits, values, weights = logits[held_out], pairs.values.expand_as(held_out)[held_out], weights[held_out]
    losses = (preference_loss(scale * logits, values, noise) for scale in _SCALES)
    return min(float(weighted_mean(loss, weights)) for loss in losses)


def _contradictions(logits: Tensor, pairs: Pairs) -> Contradictions | None:
    """Compare each label with the mean prediction of the members that hold it out."""
    held_out = pairs.weights == 0
    used = held_out.any(dim=0)
    mean = (logits * held_out).sum(dim=0)[used] / held_out.sum(dim=0)[used]
    return find_contradictions(mean, pairs.values[used], pairs.importance[used])


def _accuracy(logits: Tensor, pairs: Pairs, noise: float) -> float:
    right = is_right(chance_of_first(logits, noise), pairs.values).float()
    return float(weighted_mean(right.flatten(), held_out_weights(pairs).flatten()))


def find_contradictions(
    logits: Tensor, values: Tensor, importance: Tensor | None = None
) -> Contradictions | None:
    """Estimate by maximum likelihood which share of labels close calls don't explain.

    Each label is modeled as random with some probability, and against the prediction in half of these cases;
    otherwise it follows the Bradley-Terry model. The scale of the returns is estimated together with this
    probability, because a predictor fitted to contradictory labels is less confident.

    Args:
        logits: ``(n,)``, predicted return of the first segment minus the second's, from a predictor that was
            not fitted to these labels.
        values: ``(n,)``, probability that the first segment is preferred. Values of 0.5 are ignored; others
            count as a label for the more probable side.
        importance: ``(n,)``, number of labels that each pair counts for; None for one each.

    Returns:
        The estimate; None if there are fewer than 50 labels that prefer a segment.
    """
    side = (2 * values - 1).sign()
    strict = side != 0
    importance = (torch.ones_like(values) if importance is None else importance)[strict]
    if float(importance.sum()) < _FEWEST:
        return None
    agreement = torch.sigmoid(_RETURN_SCALES.to(logits)[:, None] * (logits * side)[strict])
    noise = _NOISE.to(logits)[:, None, None]
    likelihood = ((1 - noise) * agreement + noise / 2).clamp(min=_SMALLEST)
    best = (importance * likelihood.log()).sum(dim=2).amax(dim=1).cpu()  # over scales: the profile likelihood
    likely = _NOISE[best >= best.max() - _BELOW_BEST] / 2
    return Contradictions(float(_NOISE[best.argmax()] / 2), float(likely.min()))

"""Share of labels that contradict predictions from the other labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

_FEWEST = 50  # labels; fewer say too little
_BELOW_BEST = 1.35  # nats; half the 90% quantile of chi-squared(1), as in a likelihood ratio test
_SCALES = torch.logspace(-1.5, 1, 12)
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
    agreement = torch.sigmoid(_SCALES.to(logits)[:, None] * (logits * side)[strict])
    noise = _NOISE.to(logits)[:, None, None]
    likelihood = ((1 - noise) * agreement + noise / 2).clamp(min=_SMALLEST)
    best = (importance * likelihood.log()).sum(dim=2).amax(dim=1).cpu()  # over scales: the profile likelihood
    likely = _NOISE[best >= best.max() - _BELOW_BEST] / 2
    return Contradictions(float(_NOISE[best.argmax()] / 2), float(likely.min()))

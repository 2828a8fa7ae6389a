"""Estimate of the share of wrong labels, from predictions on labels held out of the fit."""

from dataclasses import dataclass

import torch
from torch import Tensor

_FEWEST = 50  # labels; fewer give an interval too wide to be of use
_BELOW_BEST = 1.35  # nats; half the 90% quantile of chi-squared(1), as in a likelihood ratio test
_SCALES = torch.logspace(-1.5, 1, 12)
_NOISE = torch.linspace(0, 0.98, 50)
_SMALLEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class LabelErrors:
    """Estimated share of wrong labels, with a 90% confidence interval.

    Attributes:
        rate: maximum likelihood estimate, from 0 to 0.49.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rate:.0%} ({self.low:.0%} to {self.high:.0%})"


def estimate_label_errors(logits: Tensor, values: Tensor) -> LabelErrors | None:
    """Estimate the share of wrong labels by maximum likelihood.

    Each label is assumed to be random with some probability, and wrong in half of these cases; otherwise it
    follows the Bradley-Terry model. The scale of the returns is estimated together with this probability,
    because a predictor fitted to wrong labels is less confident. The interval is that of a likelihood ratio
    test. It is wide if the returns of compared segments are similar, because mistakes then look like close
    calls.

    Args:
        logits: ``(n,)``, predicted return of the first segment minus the second's, from a predictor that was
            not fitted to these labels.
        values: ``(n,)``, probability that the first segment is preferred. Values of 0.5 are ignored; others
            count as a label for the more probable side.

    Returns:
        The estimate; None if there are fewer than 50 labels that prefer a segment.
    """
    side = (2 * values - 1).sign()
    strict = side != 0
    if int(strict.sum()) < _FEWEST:
        return None
    agreement = torch.sigmoid(_SCALES.to(logits)[:, None] * (logits * side)[strict])
    noise = _NOISE.to(logits)[:, None, None]
    likelihood = ((1 - noise) * agreement + noise / 2).clamp(min=_SMALLEST)
    best = likelihood.log().sum(dim=2).amax(dim=1).cpu()  # over scales: the profile likelihood
    likely = _NOISE[best >= best.max() - _BELOW_BEST] / 2
    return LabelErrors(float(_NOISE[best.argmax()] / 2), float(likely.min()), float(likely.max()))

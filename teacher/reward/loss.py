"""Preference likelihood: Bradley-Terry on returns, with a share of random labels."""

import math

import torch
from torch import Tensor
from torch.nn import functional

_LEAST_NOISE = 2 * torch.finfo(torch.float32).tiny  # less is 0 in single precision


def preference_loss(logits: Tensor, values: Tensor, noise: float) -> Tensor:
    """Return the negative log-likelihood of each preference (Christiano et al. 2017, section 2.2.3).

    Labelers are assumed to choose at random with probability ``noise`` and by Bradley-Terry otherwise, so
    the first is chosen with probability ``(1 - noise) * sigmoid(logit) + noise / 2``. Computed in log space
    without clamping: without noise, a confidently wrong prediction keeps its full gradient of 1.

    Args:
        logits: predicted return of the first segment minus that of the second.
        values: probability in [0, 1] that the first is preferred; broadcasts against ``logits``.
        noise: in [0, 1).

    Returns:
        The loss of each preference, in nats, in the shape of ``logits``.
    """
    first = _log_probability(logits, noise)
    second = _log_probability(-logits, noise)
    return -(values * first + (1 - values) * second)


def preference_slope(logits: Tensor, values: Tensor, noise: float) -> Tensor:
    """Return the derivative of :func:`preference_loss` with respect to the logits.

    Each label contributes the probability that it was not random, times the probability that Bradley-Terry
    assigns to the opposite label.
    """
    first = _slope(logits, noise)
    second = _slope(-logits, noise)
    return (1 - values) * second - values * first


def _slope(logits: Tensor, noise: float) -> Tensor:
    """Return the derivative of :func:`_log_probability` with respect to the logits."""
    unlikely = torch.sigmoid(-logits)
    if noise < _LEAST_NOISE:
        return unlikely
    chosen = (1 - noise) * torch.sigmoid(logits)
    return unlikely * (chosen / (chosen + noise / 2))


def smoothed(values: Tensor, smoothing: float) -> Tensor:
    """Smooth targets to at most ``1 - smoothing``, so that no pair drives returns apart without limit.

    With label smoothing (Szegedy et al. 2016, section 7) the optimal difference of returns is finite, as with
    a squared loss to a margin (Azar et al. 2023); for preferences it is known as conservative (Mitchell
    2023). It has an effect only above half of the assumed label noise, which already bounds the predicted
    probability.
    """
    return values if smoothing == 0 else smoothing + (1 - 2 * smoothing) * values


def discounts(length: int, discount: float) -> Tensor:
    """Return the weight of each of ``length`` steps in a segment's return: 1, ``discount``, ..."""
    return torch.tensor(discount).pow(torch.arange(length))


def _log_probability(logits: Tensor, noise: float) -> Tensor:
    chosen = functional.logsigmoid(logits)
    if noise < _LEAST_NOISE:
        return chosen
    at_random = torch.full_like(chosen, math.log(noise) - math.log(2))
    return torch.logaddexp(chosen + math.log1p(-noise), at_random)

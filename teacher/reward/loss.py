"""The likelihood of preferences: Bradley-Terry on returns, with a share of labels given at random."""

import math

import torch
from torch import Tensor
from torch.nn import functional

_LEAST_NOISE = 2 * torch.finfo(torch.float32).tiny  # less comes to none in single precision


def preference_loss(logits: Tensor, values: Tensor, noise: float) -> Tensor:
    """Negative log-likelihood of each preference (Christiano et al. 2017, section 2.2.3).

    A labeler is assumed to choose at random with probability ``noise`` and else by Bradley-Terry, so the
    first is chosen with probability ``(1 - noise) * sigmoid(logit) + noise / 2``. It is computed in log space
    and nothing is clamped: without noise, a confidently wrong prediction keeps its full gradient of 1.

    Args:
        logits: predicted return of the first segment minus that of the second.
        values: probability in [0, 1] that the first is preferred; broadcasts against ``logits``.
        noise: in [0, 1).

    Returns:
        The loss of each, in nats, of the shape of ``logits``.
    """
    first = _log_probability(logits, noise)
    second = _log_probability(-logits, noise)
    return -(values * first + (1 - values) * second)


def preference_slope(logits: Tensor, values: Tensor, noise: float) -> Tensor:
    """The derivative of :func:`preference_loss` by the logits.

    Each label pulls with how likely it is that it was not given at random, times how unlikely Bradley-Terry
    thinks it.
    """
    first = _slope(logits, noise)
    second = _slope(-logits, noise)
    return (1 - values) * second - values * first


def _slope(logits: Tensor, noise: float) -> Tensor:
    """The derivative of :func:`_log_probability`."""
    unlikely = torch.sigmoid(-logits)
    if noise < _LEAST_NOISE:
        return unlikely
    chosen = (1 - noise) * torch.sigmoid(logits)
    return unlikely * (chosen / (chosen + noise / 2))


def smoothed(values: Tensor, smoothing: float) -> Tensor:
    """Targets of which none is surer than ``1 - smoothing``, so that no pair pulls returns apart for ever.

    Label smoothing (Szegedy et al. 2016, section 7): with it the best difference of returns is finite, as a
    squared loss to a margin makes it, too (Azar et al. 2023); for preferences it is known as conservative
    (Mitchell 2023). It bounds anything only beyond half of the assumed label noise, which a likelihood that
    knows of noise never asks a pair to exceed.
    """
    return values if smoothing == 0 else smoothing + (1 - 2 * smoothing) * values


def discounts(length: int, discount: float) -> Tensor:
    """How much each of ``length`` steps counts in a segment's return: 1, ``discount``, its square, ..."""
    return torch.tensor(discount).pow(torch.arange(length))


def _log_probability(logits: Tensor, noise: float) -> Tensor:
    chosen = functional.logsigmoid(logits)
    if noise < _LEAST_NOISE:
        return chosen
    at_random = torch.full_like(chosen, math.log(noise) - math.log(2))
    return torch.logaddexp(chosen + math.log1p(-noise), at_random)

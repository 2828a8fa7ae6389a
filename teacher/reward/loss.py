"""Preference loss: the Bradley-Terry model of segment returns, with a fraction of random labels."""

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_LEAST_NOISE = 2 * torch.finfo(torch.float32).tiny  # half of any smaller value underflows in float32


class PreferenceLoss(Protocol):
    """Loss of preferences, which a network ensemble minimizes; :func:`preference_loss` is the default."""

    def __call__(self, logits: Tensor, values: Tensor, /) -> Tensor:
        """Return the loss of each preference; must be differentiable with respect to ``logits``.

        Args:
            logits: ``(members, n)``, predicted return of the first segment minus the second's.
            values: target probability, in [0, 1], that the first segment is preferred; ``(members, n)`` or
                ``(n,)``, for all members.

        Returns:
            ``(members, n)``.
        """


def preference_loss(logits: Tensor, values: Tensor, noise: float) -> Tensor:
    """Return the negative log-likelihood of each preference (Christiano et al. 2017, section 2.2.3).

    Labelers are assumed to choose at random with probability ``noise``, and by the Bradley-Terry model
    otherwise. They choose the first segment with probability ``(1 - noise) * sigmoid(logit) + noise / 2``.
    The loss is computed in log space without clamping. Without noise, a confidently wrong prediction
    therefore keeps the full gradient magnitude of 1 with respect to the logit.

    Args:
        logits: predicted return of the first segment minus the second's.
        values: target probability, in [0, 1], that the first segment is preferred; broadcasts against
            ``logits``.
        noise: assumed fraction of random labels, in [0, 1).

    Returns:
        The loss of each preference, in nats, with the shape of ``logits``.
    """
    first = _log_probability(logits, noise)
    second = _log_probability(-logits, noise)
    return -(values * first + (1 - values) * second)


def preference_slope(logits: Tensor, values: Tensor, noise: float) -> Tensor:
    """Return the derivative of :func:`preference_loss` with respect to the logits.

    For a label of 0 or 1, its magnitude is the posterior probability that the label was not random, times the
    Bradley-Terry probability of the opposite label.
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
    """Apply label smoothing: map targets from [0, 1] to [``smoothing``, ``1 - smoothing``].

    Smoothing (Szegedy et al. 2016, section 7) keeps the optimal difference in returns finite, as does the IPO
    loss (Azar et al. 2023). Conservative DPO (Mitchell 2023) also smooths preference labels. ``smoothing``
    has an effect only if it exceeds half of the assumed label noise, because the noise already keeps
    probabilities between ``noise / 2`` and ``1 - noise / 2``.
    """
    return values if smoothing == 0 else smoothing + (1 - 2 * smoothing) * values


def discounts(length: int, discount: float) -> Tensor:
    """Return the discount factors of ``length`` steps: 1, ``discount``, ``discount**2`` and so on."""
    return torch.tensor(discount).pow(torch.arange(length))


def _log_probability(logits: Tensor, noise: float) -> Tensor:
    chosen = functional.logsigmoid(logits)
    if noise < _LEAST_NOISE:
        return chosen
    at_random = torch.full_like(chosen, math.log(noise) - math.log(2))
    return torch.logaddexp(chosen + math.log1p(-noise), at_random)

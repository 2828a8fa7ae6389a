"""The likelihood of preferences: Bradley-Terry on returns, with a share of labels given at random."""

import math

import torch
from torch import Tensor
from torch.nn import functional


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


def discounts(length: int, discount: float) -> Tensor:
    """How much each of ``length`` steps counts in a segment's return: 1, ``discount``, its square, ..."""
    return torch.tensor(discount).pow(torch.arange(length))


def _log_probability(logits: Tensor, noise: float) -> Tensor:
    chosen = functional.logsigmoid(logits)
    if noise == 0:
        return chosen
    at_random = torch.full_like(chosen, math.log(noise) - math.log(2))
    return torch.logaddexp(chosen + math.log1p(-noise), at_random)

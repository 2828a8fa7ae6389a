"""More training pairs out of the same labels: temporal crops."""

import torch
from torch import Tensor


def crop(step_weights: Tensor, pairs: tuple[int, int], shortest: float, generator: torch.Generator) -> Tensor:
    """Step weights that count only a random part of each segment, of one length in both of a pair.

    A label is taken to hold for parts of what was compared, too (SURF: Park et al. 2022, section 4.2). A part
    begins anywhere; its first step weighs what the first of the whole segment does.

    Args:
        step_weights: ``(length,)``, of whole segments.
        pairs: members, and pairs of each.
        shortest: share of a segment that the shortest part is; all lengths from there are equally likely.
        generator: on the CPU.

    Returns:
        ``(*pairs, 2, length)``.
    """
    length = len(step_weights)
    least = max(1, round(shortest * length))
    lengths = torch.randint(least, length + 1, (*pairs, 1), generator=generator)
    room = length - lengths + 1
    starts = torch.randint(2**40, (*pairs, 2), generator=generator) % room
    since = torch.arange(length) - starts.unsqueeze(-1)
    inside = (since >= 0) & (since < lengths.unsqueeze(-1))
    return (step_weights.cpu()[since.clamp(min=0)] * inside).to(step_weights)

"""Data augmentation for preference pairs: temporal crops."""

import torch
from torch import Tensor


def crop(step_weights: Tensor, pairs: tuple[int, int], shortest: float, generator: torch.Generator) -> Tensor:
    """Return step weights that keep only a random crop of each segment, of equal length within a pair.

    Assumes that a label also holds for parts of the compared segments (SURF: Park et al. 2022, section 4.2).
    A crop starts anywhere; its first step gets the weight of the full segment's first step.

    Args:
        step_weights: ``(length,)``, for whole segments.
        pairs: number of members, and of pairs per member.
        shortest: shortest crop as a fraction of the segment; all lengths from there up are equally likely.
        generator: random generator on the CPU.

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

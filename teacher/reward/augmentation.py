"""Data augmentation for preference learning: random temporal crops of segments."""

import torch
from torch import Tensor


def crop(step_weights: Tensor, pairs: tuple[int, int], shortest: float, generator: torch.Generator) -> Tensor:
    """Return step weights that crop each segment at random; both crops of a pair have the same length.

    This is the temporal cropping of SURF (Park et al. 2022, section 4.2), which assumes that a label for
    two segments is also valid for crops of them. Each segment's crop has its own random start. The first step
    of a crop gets the weight of the segment's first step, so discounting restarts there.

    Args:
        step_weights: ``(length,)``, the weight of each step of an uncropped segment.
        pairs: shape of the batch of pairs, ``(members, pairs per member)``.
        shortest: minimum crop length as a fraction of the segment's length; all lengths from the minimum to
            the full length are equally likely.
        generator: CPU random generator.

    Returns:
        Step weights ``(*pairs, 2, length)``, which are 0 for steps outside the crops.
    """
    length = len(step_weights)
    least = max(1, round(shortest * length))
    lengths = torch.randint(least, length + 1, (*pairs, 1), generator=generator)
    room = length - lengths + 1
    starts = torch.randint(2**40, (*pairs, 2), generator=generator) % room
    since = torch.arange(length) - starts.unsqueeze(-1)
    inside = (since >= 0) & (since < lengths.unsqueeze(-1))
    return (step_weights.cpu()[since.clamp(min=0)] * inside).to(step_weights)

"""Which segments show any motion: people can't tell which of two frozen clips is better."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from teacher.data.segments import Segment

LEAST_MOTION = 0.01
"""Standard deviation of any feature within a segment, as a share of that in the pool, from which it moves.

It is low, because what holds still is often what people want, such as a balanced pole.
"""
LEAST_PIXELS = 0.001
"""Least share of an image's pixels that change visibly within a segment."""
_VISIBLE = 1 / 16  # of the range of values in the segment

_moments: WeakKeyDictionary[Segment, NDArray[np.float64]] = WeakKeyDictionary()


def moving(segments: Sequence[Segment]) -> NDArray[np.bool_]:
    """Return a mask of the segments in which an observation changes noticeably, ``(len(segments),)``.

    Args:
        segments: the segments of one pool; their observations have the same shape.
    """
    if not segments:
        return np.ones(0, np.bool_)
    found = np.array([_moments_of(segment) for segment in segments])
    if found.ndim == 1:  # of images
        return found >= LEAST_PIXELS
    means, variances = found[:, 0], found[:, 1]
    in_pool = means.var(axis=0) + variances.mean(axis=0)
    moves: NDArray[np.bool_] = (variances >= LEAST_MOTION**2 * in_pool)[:, in_pool > 0].any(axis=1)
    return moves


def _moments_of(segment: Segment) -> NDArray[np.float64]:
    """Return each feature's mean and variance, ``(2, size)``; for images, the share of changing pixels."""
    known = _moments.get(segment)
    if known is None:
        known = _moments[segment] = _measured(segment.observations)
    return known


def _measured(observations: NDArray[np.generic]) -> NDArray[np.float64]:
    if observations.ndim > 2:
        low, high = (extreme(observations, axis=0).astype(np.float64) for extreme in (np.min, np.max))
        return np.array((high - low > _VISIBLE * (high.max() - low.min())).mean())
    steps = observations.reshape(len(observations), -1).astype(np.float64)
    return np.stack([steps.mean(axis=0), steps.var(axis=0)])

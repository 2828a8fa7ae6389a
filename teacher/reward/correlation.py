"""Pearson's and Spearman's correlation, NaN where there is none."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Pearson's correlation, NaN where one side is constant or fewer than three values are given."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's rank correlation, NaN where one side is constant or fewer than three values are given."""
    return correlation(_ranks(first), _ranks(second))


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Where each value stands among all, from 1; equal values share the mean of their places.

    As ``scipy.stats.rankdata``, which takes half a second to import.
    """
    _, places, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return shared[places]

"""Transitions to train on, in minibatches, and the means of what is reported of these."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agents.distributed import Ranks


class Batch(NamedTuple):
    """Transitions to train on: tensors for torch, arrays for numpy.

    Of the ``size`` transitions that all ranks together train on, each rank has its own ``n``, perhaps none.
    Alone, a process has all of them.

    Attributes:
        advantages: ``(size,)``, of all ranks' transitions, because they are standardised over all of them.
        own: ``(size,)`` of booleans, in numpy: which of them this rank has; other columns are ``(n, ...)``.
    """

    observations: Any
    actions: Any
    log_probs: Any
    values: Any
    returns: Any
    advantages: Any
    own: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Transitions of all ranks."""
        return len(self.own)

    def numpy(self) -> "Batch":
        """The same with arrays in place of tensors, which share their memory."""
        *columns, own = self
        return Batch._make([*(column.numpy() for column in columns), own])

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator["Batch"]:
        """One pass in random order, in parts of at least ``size``, where there are so many.

        They differ by one transition at most: dummy transitions make the size of a batch vary, and a small
        last minibatch would make a noisy step. The order is that of all ranks, so each has some of every
        minibatch, by chance.
        """
        *columns, advantages, own = self
        order = rng.permutation(self.size)
        advantages, own = advantages[order], own[order]
        rows = (np.cumsum(self.own) - 1)[order[own]]
        columns = [column[rows] for column in columns]
        ends = np.linspace(0, self.size, max(1, self.size // size) + 1).astype(int)
        own_ends = np.concatenate([[0], np.cumsum(own)])[ends]
        parts = zip(itertools.pairwise(ends), itertools.pairwise(own_ends), strict=True)
        for (start, end), (own_start, own_end) in parts:
            own_columns = (column[own_start:own_end] for column in columns)
            yield Batch._make([*own_columns, advantages[start:end], own[start:end]])


def mean_of(metrics: Sequence[Mapping[str, Any]], ranks: Ranks) -> dict[str, float]:
    """Means of what several steps report, the shares of all ranks added up; empty for no step."""
    if not metrics:
        return {}
    means = np.array([float(sum(step[name] for step in metrics)) / len(metrics) for name in metrics[0]])
    ranks.sum(means)
    return dict(zip(metrics[0], means.tolist(), strict=True))


def standardized(advantages: Tensor) -> Tensor:
    """Advantages ``(size,)`` brought to mean 0 and unbiased standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

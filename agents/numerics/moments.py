"""Running mean and variance, merged from batches in double precision."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_STD = 1e-6
"""Values whose standard deviation is at most this are treated as constant."""


class RunningMoments:
    """Elementwise running mean and population variance of all samples passed to :meth:`update`.

    Batches are merged with the parallel formula of Chan, Golub and LeVeque (1979), so the result doesn't
    depend on batch sizes.

    Attributes:
        mean: mean of each element, ``(*shape,)``; 0 before the first sample.
        variance: variance of each element, ``(*shape,)``; 1 before the first sample.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self.variance: NDArray[np.float64] = np.ones(shape)
        self.count = 0

    @property
    def std(self) -> NDArray[np.float64]:
        """Return the standard deviation of each element, ``(*shape,)``."""
        return np.sqrt(self.variance)

    def update(
        self,
        samples: NDArray[Any],
        gather: Callable[[NDArray[np.float64]], Iterable[NDArray[np.float64]]] | None = None,
    ) -> None:
        """Update the statistics with ``samples``, ``(n, *shape)``; ``n`` may be 0.

        Args:
            gather: returns the given array of every process, in the same order everywhere; None for a single
                process.
        """
        samples, n = samples.astype(np.float64, copy=False), len(samples)
        moments = np.zeros((3, *self.mean.shape))
        if n:
            moments[0], moments[1], moments[2] = n, samples.mean(axis=0), samples.var(axis=0)
        for count, mean, variance in [moments] if gather is None else gather(moments):
            self.merge(int(np.max(count)), mean, variance)

    def merge(self, n: int, mean: Any, variance: Any) -> None:
        """Merge the mean and variance, ``(*shape,)``, of ``n`` samples into the statistics."""
        if n == 0:
            return
        total = self.count + n
        between = np.square(mean - self.mean) * self.count * n / total
        self.variance = (self.variance * self.count + variance * n + between) / total
        self.mean = self.mean + (mean - self.mean) * n / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the mean, variance and count."""
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics returned by :meth:`state_dict`."""
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.variance = np.array(state["variance"], dtype=np.float64)
        self.count = int(state["count"])

"""Detection of numbers too far from 0 to be resolved by the float type they are stored in.

Around 1e9, single precision has a spacing of 64, so smaller variations are lost. Double-precision numbers are
therefore centered before they are cast.
"""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

SMALLEST_STD = 1e-6
"""Standard deviation below which a number counts as constant."""
FINE = 100
"""Float spacings per standard deviation that are enough for learning."""


class Spread:
    """Mean and standard deviation of each number over the rows seen so far, in double precision.

    Batches are merged as in Chan, Golub, LeVeque (1979).

    Args:
        shape: of one row.

    Attributes:
        mean: ``(*shape,)``; 0 before the first row.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._count = 0
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self._variance: NDArray[np.float64] = np.zeros(shape)

    @classmethod
    def of(cls, parts: Iterable[NDArray[Any]], shape: tuple[int, ...]) -> Self:
        """Return the spread of all rows in some arrays ``(..., *shape)``."""
        spread = cls(shape)
        for part in parts:
            spread.add(part)
        return spread

    @property
    def std(self) -> NDArray[np.float64]:
        """Return the standard deviations, ``(*shape,)``; 0 before the first row."""
        return np.sqrt(self._variance)

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Return a mask of the numbers that are not constant, ``(*shape,)``."""
        return self.std > SMALLEST_STD

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows ``(..., *shape)`` to the statistics."""
        rows = rows.reshape(-1, *self._shape).astype(np.float64, copy=False)
        if len(rows) == 0:
            return
        self._count += len(rows)
        share, shift = len(rows) / self._count, rows.mean(axis=0) - self.mean
        within = (1 - share) * self._variance + share * rows.var(axis=0)
        self._variance = within + share * (1 - share) * np.square(shift)
        self.mean = self.mean + share * shift

    def spacing(self, dtype: np.dtype[Any], center: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
        """Return the spacing of a float type around the mean minus ``center``, ``(*shape,)``."""
        spacing: NDArray[np.float64] = np.abs(self.mean - center) * float(np.finfo(dtype).eps)
        return spacing

    def is_coarse(
        self, dtype: np.dtype[Any], levels: float = FINE, center: NDArray[np.float64] | float = 0.0
    ) -> NDArray[np.bool_]:
        """Return a mask of the numbers, minus ``center``, that a type can hardly resolve, ``(*shape,)``.

        These have fewer than ``levels`` float spacings per standard deviation, or seem constant while the
        spacing is more than 1, so that variation can't be seen.
        """
        spacing = self.spacing(dtype, center)
        coarse: NDArray[np.bool_] = spacing > np.where(self.varies, self.std / levels, 1.0)
        return coarse

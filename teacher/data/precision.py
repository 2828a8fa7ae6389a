"""Detection of values that float32 cannot store precisely enough because they are far from 0.

Near 1e9, adjacent float32 numbers are 64 apart, so smaller variations are lost. Double-precision values are
therefore centered before they are cast to float32.
"""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

SMALLEST_STD = 1e-6
"""Values whose standard deviation is at most this are treated as constant."""
FINE = 100
"""Number of distinct floats per standard deviation that is sufficient for learning."""


class Spread:
    """Running mean and standard deviation of each element over all rows, in double precision.

    Batches are merged with the method of Chan, Golub and LeVeque (1979).

    Args:
        shape: shape of one row.

    Attributes:
        mean: mean of each element, ``(*shape,)``; 0 if no rows have been added.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._count = 0
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self._variance: NDArray[np.float64] = np.zeros(shape)

    @classmethod
    def of(cls, parts: Iterable[NDArray[Any]], shape: tuple[int, ...]) -> Self:
        """Return the statistics of all rows in ``parts``, arrays of shape ``(..., *shape)``."""
        spread = cls(shape)
        for part in parts:
            spread.add(part)
        return spread

    @property
    def std(self) -> NDArray[np.float64]:
        """Return the standard deviation of each element, ``(*shape,)``; 0 if no rows have been added."""
        return np.sqrt(self._variance)

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Return a mask of the elements that are not constant, ``(*shape,)``."""
        return self.std > SMALLEST_STD

    def add(self, rows: NDArray[Any]) -> None:
        """Update the statistics with rows of shape ``(..., *shape)``."""
        rows = rows.reshape(-1, *self._shape).astype(np.float64, copy=False)
        if len(rows) == 0:
            return
        self._count += len(rows)
        share, shift = len(rows) / self._count, rows.mean(axis=0) - self.mean
        within = (1 - share) * self._variance + share * rows.var(axis=0)
        self._variance = within + share * (1 - share) * np.square(shift)
        self.mean = self.mean + share * shift

    def spacing(self, dtype: np.dtype[Any], center: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
        """Return the floating-point spacing (ULP) of ``dtype`` near ``mean - center``, ``(*shape,)``."""
        spacing: NDArray[np.float64] = np.abs(self.mean - center) * float(np.finfo(dtype).eps)
        return spacing

    def is_coarse(
        self, dtype: np.dtype[Any], levels: float = FINE, center: NDArray[np.float64] | float = 0.0
    ) -> NDArray[np.bool_]:
        """Return a mask of the elements that ``dtype`` cannot store precisely enough, ``(*shape,)``.

        Values are stored with ``center`` subtracted. Precision is sufficient if the spacing between adjacent
        ``dtype`` numbers is at most 1/``levels`` of the standard deviation. For an element whose standard
        deviation is almost 0, the spacing must be at most 1, because a larger one may hide variation.
        """
        spacing = self.spacing(dtype, center)
        coarse: NDArray[np.bool_] = spacing > np.where(self.varies, self.std / levels, 1.0)
        return coarse

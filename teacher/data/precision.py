"""Which numbers lie too far from 0 to be told apart in the precision that they are kept in.

Around 1e9 single precision steps by 64, and so whatever varies less is lost. Numbers of double precision are
therefore centered before they are cast.
"""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

SMALLEST_STD = 1e-6
"""A number that varies less counts as constant."""
FINE = 100
"""Numbers of a type within a standard deviation from which on they do for learning."""


class Spread:
    """Mean and standard deviation of each number of the rows seen so far, in double precision.

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
        """``(*shape,)``; 0 before the first row."""
        return np.sqrt(self._variance)

    @property
    def varies(self) -> NDArray[np.bool_]:
        """``(*shape,)``, which numbers are not constant."""
        return self.std > SMALLEST_STD

    def add(self, rows: NDArray[Any]) -> None:
        """Take in rows ``(..., *shape)``."""
        rows = rows.reshape(-1, *self._shape).astype(np.float64, copy=False)
        if len(rows) == 0:
            return
        self._count += len(rows)
        share, shift = len(rows) / self._count, rows.mean(axis=0) - self.mean
        within = (1 - share) * self._variance + share * rows.var(axis=0)
        self._variance = within + share * (1 - share) * np.square(shift)
        self.mean = self.mean + share * shift

    def spacing(self, dtype: np.dtype[Any], center: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
        """Return how far apart a type's numbers are around the mean less ``center``, ``(*shape,)``."""
        spacing: NDArray[np.float64] = np.abs(self.mean - center) * float(np.finfo(dtype).eps)
        return spacing

    def is_coarse(
        self, dtype: np.dtype[Any], levels: float = FINE, center: NDArray[np.float64] | float = 0.0
    ) -> NDArray[np.bool_]:
        """Return which numbers, less ``center``, a type can hardly tell apart, ``(*shape,)``.

        They have fewer than ``levels`` of its numbers within a standard deviation, or are constant where its
        numbers are more than 1 apart, so that it cannot be known whether they are.
        """
        spacing = self.spacing(dtype, center)
        coarse: NDArray[np.bool_] = spacing > np.where(self.varies, self.std / levels, 1.0)
        return coarse

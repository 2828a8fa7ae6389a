"""Base class of results with NaN where there was nothing to measure."""

import dataclasses
from dataclasses import dataclass
from math import isnan, nan


@dataclass(frozen=True, eq=False)
class Result:
    """Base of frozen dataclasses, defined with ``eq=False``, in which NaN equals NaN.

    Otherwise a result with NaN would not equal a copy, and from Python 3.13 on not even itself.
    """

    def __eq__(self, other: object) -> bool:
        """Return True if ``other`` has the same class and the same values."""
        if not isinstance(other, Result) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        """Return the same number for equal results."""
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        # A tuple equals another with the same NaN object.
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(nan if isinstance(value, float) and isnan(value) else value for value in values)

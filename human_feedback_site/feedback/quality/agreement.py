"""How far labelers agree, and how sure that is. Knows nothing of Django."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # of a normal distribution, 95 % lie within


def krippendorff_alpha(units: Mapping[Sequence[int], int]) -> float | None:
    """Return Krippendorff's alpha for nominal data: 1 is agreement, 0 is chance.

    Args:
        units: how many units got each combination of values: ``{(2, 0, 1): 5}`` says that for five units two
            labelers said the first value and one the third. Who gave no value is not counted.

    Returns:
        None where no unit has two values, or all values are the same: there is nothing to agree on.
    """
    pairable = {counts: number for counts, number in units.items() if sum(counts) > 1}
    values = range(max((len(counts) for counts in pairable), default=0))
    totals = [sum(number * counts[value] for counts, number in pairable.items()) for value in values]
    n = sum(totals)
    expected = n * n - sum(total * total for total in totals)
    if not expected:
        return None
    observed = sum(
        number * (sum(counts) ** 2 - sum(count * count for count in counts)) / (sum(counts) - 1)
        for counts, number in pairable.items()
    )
    return 1 - (n - 1) * observed / expected


@dataclass(frozen=True)
class Rate:
    """``hits`` of ``total``."""

    hits: int
    total: int

    @property
    def value(self) -> float | None:
        """The share; None of nothing."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share is with 95 % confidence, by Wilson's score."""
        return wilson_interval(self.hits, self.total)


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return the bounds of Wilson's score interval of 95 %; of nothing, anything from 0 to 1."""
    if not total:
        return 0.0, 1.0
    share, spread = hits / total, _Z * _Z / total
    centre = (share + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)

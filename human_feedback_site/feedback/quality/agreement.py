"""Agreement between labelers: Krippendorff's alpha and confidence intervals. Independent of Django."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # standard normal quantile for a 95% interval


def krippendorff_alpha(units: Mapping[Sequence[int], int]) -> float | None:
    """Return Krippendorff's alpha for nominal data: 1 is perfect agreement, 0 is chance level.

    Args:
        units: number of units for each tuple of value counts. ``{(2, 0, 1): 5}`` means that for five units,
            two labelers gave the first value and one gave the third. Missing values are not counted.

    Returns:
        Alpha, or None if it is undefined: no unit has at least two values, or the values of all such units
        are identical.
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
    """A proportion: ``hits`` out of ``total``."""

    hits: int
    total: int

    @property
    def value(self) -> float | None:
        """``hits / total``, or None if ``total`` is 0."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """95% Wilson score interval for the true proportion."""
        return wilson_interval(self.hits, self.total)


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return the 95% Wilson score interval for a proportion, or (0, 1) if ``total`` is 0."""
    if not total:
        return 0.0, 1.0
    share, spread = hits / total, _Z * _Z / total
    centre = (share + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)

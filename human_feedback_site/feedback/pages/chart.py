"""Geometry of SVG line charts; the template draws them and the style sheet colors them.

Positions are percentages of the plot area, so a chart can stretch to any width while its text keeps its size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PATH_UNITS = 1000  # side of the path's square coordinate system, which the template stretches over the plot
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Tick:
    """Axis tick, with its text and its position in percent from the left (x axis) or top (y axis)."""

    position: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Data from which the template draws a line chart with one curve."""

    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    path: str
    end: tuple[float, float]
    latest: str


def line_chart(points: Sequence[tuple[float, float]]) -> Chart | None:
    """Return a line chart of ``points``, or None if no point has a finite value.

    ``points`` are (step, value) pairs sorted by step; those with NaN or infinite values are skipped. The
    horizontal axis starts at step 0.
    """
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    x_high = max(*xs, 1.0)
    y_values = nice_ticks(min(ys), max(ys), 5)
    y_low, y_high = y_values[0], y_values[-1]

    def percent(x: float, y: float) -> tuple[float, float]:
        return round(100 * x / x_high, 2), round(100 * (y_high - y) / (y_high - y_low), 2)

    placed = [percent(x, y) for x, y in points]
    scale = PATH_UNITS / 100
    x_values = [x for x in nice_ticks(0.0, x_high, 6) if x <= x_high]
    return Chart(
        x_ticks=[Tick(percent(x, y_low)[0], short_number(x)) for x in x_values],
        y_ticks=[Tick(percent(0.0, y)[1], short_number(y)) for y in y_values],
        path="M" + "L".join(f"{x * scale:.1f} {y * scale:.1f}" for x, y in placed),
        end=placed[-1],
        latest=short_number(ys[-1]),
    )


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return round tick values that enclose ``low`` and ``high``, with about ``wanted`` intervals.

    The tick spacing is 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", Graphics
    Gems, 1990).
    """
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = abs(high) / 2 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def short_number(value: float) -> str:
    """Return ``value`` with at most three significant digits and an SI suffix: 1.2M, 350k, 0.05, -3."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"

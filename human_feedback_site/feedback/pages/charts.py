"""Line charts, as data from which templates draw them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Positions in charts are percentages of the plot area: a chart stretches while its text keeps its size.
PATH_UNITS = 1000  # side of the path's square coordinate system, which the template stretches over the plot
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Tick:
    """Axis tick, with its text and its position in percent from the left (x axis) or top (y axis)."""

    position: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Data from which the template draws a line chart with one curve, or with another one behind it."""

    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    path: str
    other: str  # path of the other curve; empty if there is none
    end: tuple[float, float]
    latest: str
    x_high: float
    y_range: tuple[float, float]

    @property
    def scale(self) -> str:
        """Return the highest x, the lowest y and the highest y, for scripts."""
        return " ".join(f"{value:g}" for value in (self.x_high, *self.y_range))

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point in percent from the left and from the top."""
        low, high = self.y_range
        return round(100 * x / self.x_high, 2), round(100 * (high - y) / (high - low), 2)


Points = Sequence[tuple[float, float]]


def line_chart(points: Points, other: Points = ()) -> Chart | None:
    """Return a line chart of ``points``, or None if no point has a finite value.

    ``points`` are (step, value) pairs sorted by step, and so are ``other``, another curve on the same axes.
    Those with NaN or infinite values are skipped. The horizontal axis starts at step 0.
    """
    points, other = _finite(points), _finite(other)
    if not points:
        return None
    xs, ys = zip(*points, *other, strict=True)
    x_high = max(*xs, 1.0)
    y_values = nice_ticks(min(ys), max(ys), 5)
    y_low, y_high = y_values[0], y_values[-1]
    empty = Chart((), (), "", "", (0, 0), short_number(points[-1][1]), x_high, (y_low, y_high))
    x_values = [x for x in nice_ticks(0.0, x_high, 6) if x <= x_high]
    return replace(
        empty,
        x_ticks=[Tick(empty.at(x, y_low)[0], short_number(x)) for x in x_values],
        y_ticks=[Tick(empty.at(0.0, y)[1], short_number(y)) for y in y_values],
        path=_path(empty, points),
        other=_path(empty, other),
        end=empty.at(*points[-1]),
    )


def _finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _path(chart: Chart, points: Points) -> str:
    scale = PATH_UNITS / 100
    placed = [chart.at(x, y) for x, y in points]
    return "M" + "L".join(f"{x * scale:.1f} {y * scale:.1f}" for x, y in placed) if placed else ""


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """Return the SVG path of a small curve on a scale from ``low`` to ``high``, 100 wide and 30 high."""
    width, height = 100 / max(1, len(values) - 1), 30 / ((high - low) or 1.0)
    return "M" + "L".join(
        f"{round(index * width, 1):g} {round((high - value) * height, 1):g}"
        for index, value in enumerate([*values, *values] if len(values) == 1 else values)
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

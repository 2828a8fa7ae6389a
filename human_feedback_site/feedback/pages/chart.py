"""Line charts as SVG geometry: Python computes where things go, the template draws, the style sheet colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 10.0, 30.0
MAX_POINTS = 600
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where it is, in SVG units, and what it says."""

    position: float
    text: str


@dataclass(frozen=True)
class Chart:
    """What a template needs to draw one curve; all lengths are SVG units, y grows downward."""

    width: int
    height: int
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    path: str
    last: tuple[float, float]
    latest: str

    @property
    def left(self) -> float:
        """Where the plot begins."""
        return LEFT

    @property
    def right(self) -> float:
        """Where the plot ends."""
        return self.width - RIGHT

    @property
    def bottom(self) -> float:
        """Where the plot's floor is."""
        return self.height - BOTTOM


def line_chart(points: Sequence[tuple[float, float]], width: int, height: int) -> Chart | None:
    """Return the chart of ``points``, (step, value) in order of steps; None where nothing finite is left to draw.

    More points than pixels are thinned; the first and the last always stay.
    """
    points = thin([(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)])
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    x_ticks = nice_ticks(0.0, max(xs), 6)
    y_ticks = nice_ticks(min(ys), max(ys), 5)
    x_low, x_high = 0.0, max(max(xs), 1.0)
    y_low, y_high = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) * (width - LEFT - RIGHT)
        up = (y - y_low) / (y_high - y_low) * (height - TOP - BOTTOM)
        return round(LEFT + across, 1), round(height - BOTTOM - up, 1)

    placed = [place(x, y) for x, y in points]
    return Chart(
        width=width,
        height=height,
        x_ticks=[Tick(place(x, y_low)[0], short_number(x)) for x in x_ticks if x <= x_high],
        y_ticks=[Tick(place(0.0, y)[1], short_number(y)) for y in y_ticks],
        path="M" + "L".join(f"{x:g} {y:g}" for x, y in placed),
        last=placed[-1],
        latest=short_number(ys[-1]),
    )


def thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most about :data:`MAX_POINTS` of ``points``, evenly chosen, the last among them."""
    stride = math.ceil(len(points) / MAX_POINTS)
    return points if stride <= 1 else [*points[:-1][::stride], points[-1]]


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about ``wanted`` round numbers, at most one step beyond ``low`` and ``high`` on either side.

    Steps are 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990).
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
    """Return ``value`` with three significant digits and a metric prefix: 1.2M, 350k, 0.05, -3."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{prefix}"
    text = f"{value:.3g}"
    return "0" if float(text) == 0 else text

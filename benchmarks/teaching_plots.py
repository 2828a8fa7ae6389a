"""Plots of the label-efficiency benchmark: returns against steps, and f against the number of labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from benchmarks.results import curve_steps
from benchmarks.teaching_points import TASKS
from benchmarks.teaching_report import Row

RETURNS_NAME, LABELS_NAME = "teaching-returns.png", "teaching-labels.png"
_INK, _BLUE, _PALE, _ORANGE, _GREEN = "#3d3d3d", "#1b6ac9", "#7fb2ec", "#d9730d", "#2f9e6b"
_NEAREST_LABELS = 0.07  # minimum distance of text labels, as a fraction of the panel height


@dataclass(frozen=True)
class _Mark:
    """Style of a side in the plot of f against labels.

    Attributes:
        name: text label.
        color: color of marker and text.
        shape: marker.
        aside: horizontal offset in points, so that intervals of different sides don't overlap.
    """

    name: str
    color: str
    shape: str
    aside: float = 0


_MARKS = {
    "oracle": _Mark("oracle", _BLUE, "o"),
    "mistakes-10": _Mark("10 % mistakes", _BLUE, "v", aside=-6),
    "mistakes-30": _Mark("30 % mistakes", _PALE, "v", aside=12),
    "networks": _Mark("networks", _INK, "s", aside=6),
    "coin": _Mark("coin flips", _ORANGE, "X"),
    "imitation": _Mark("imitation", _GREEN, "D", aside=-12),
}
_ROOM_LEFT, _ROOM_RIGHT = 0.22, 0.36  # space for names, as a fraction of the panel width


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw both plots for tasks with full-length runs of the oracle; return the paths, or [] if none.

    Sides with only one seed are left out.
    """
    full = [row for row in rows if row.steps == TASKS[row.task].steps and len(row.results) > 1]
    drawable = {row.task for row in full if row.f and row.side == "oracle"}
    tasks = [task for task in TASKS if task in drawable]
    if not tasks:
        return []
    mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, panel in ((RETURNS_NAME, _draw_returns), (LABELS_NAME, _draw_labels)):
        figure, panels = _grid(len(tasks))
        for task, axes in zip(tasks, panels, strict=False):
            axes.set_title(task, loc="left", fontsize=11, fontweight="bold")
            panel(axes, [row for row in full if row.task == task])
        for axes in panels[len(tasks) :]:
            axes.set_visible(False)
        figure.savefig(folder / name, dpi=120)
        plt.close(figure)
        drawn.append(folder / name)
    return drawn


def _grid(count: int) -> tuple[Figure, Sequence[Axes]]:
    columns = min(2, count)
    lines = -(-count // columns)
    size = (4.4 * columns, 3.0 * lines + 0.2)
    figure, panels = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, panels.ravel().tolist()


def _draw_returns(axes: Axes, rows: Sequence[Row]) -> None:
    """Plot the median and range over the seeds during training: true reward, oracle and coin flips."""
    steps, ends = rows[0].steps, list[tuple[float, str, str]]()
    budgets = sorted(row.labels for row in rows if row.side == "oracle")
    for row in rows:
        if row.side == "random":
            axes.axhline(row.final.value, color=_INK, linewidth=0.8, linestyle=":")
            ends.append((row.final.value, "random actions", _INK))
            continue
        if row.side == "oracle" and row.labels in (budgets[0], budgets[-1]):
            name, color = f"{row.labels} labels", _BLUE if row.labels == budgets[-1] else _PALE
        elif row.side in ("rl", "coin"):
            name, color = ("true reward", _INK) if row.side == "rl" else ("coin flips", _ORANGE)
        else:
            continue
        ends.append((_draw_curves(axes, row, color), name, color))
    axes.set_xlim(0, steps)
    axes.xaxis.set_major_locator(MultipleLocator(steps / 4))
    axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step < 1e6 else f"{step / 1e6:g}M")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return per episode")
    axes.grid(axis="y", alpha=0.2)
    _label_ends(axes, ends)


def _draw_curves(axes: Axes, row: Row, color: str) -> float:
    """Plot a side's median and range, and return the median's last value."""
    curves = np.array([result["curve"] for result in row.results], np.float64).T  # None becomes NaN
    known = ~np.isnan(curves).any(axis=1)
    at, curves = curve_steps(row.steps)[known], curves[known]
    axes.fill_between(at, curves.min(axis=1), curves.max(axis=1), color=color, alpha=0.13, linewidth=0)
    axes.plot(at, np.median(curves, axis=1), color=color, linewidth=1.8)
    return float(np.median(curves[-1]))


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names to the right of the lines' ends, moved apart so that they don't overlap."""
    low, high = axes.get_ylim()
    ordered = sorted(ends)
    wanted = [(value - low) / (high - low) for value, _, _ in ordered]
    for at, (_, name, color) in zip(spread(wanted, _NEAREST_LABELS), ordered, strict=True):
        axes.annotate(
            name, (1.02, at), xycoords="axes fraction", color=color, fontsize=9, verticalalignment="center"
        )


def spread(wanted: Sequence[float], least: float) -> list[float]:
    """Return the positions closest to ``wanted`` in least squares that are at least ``least`` apart.

    ``wanted`` must be ascending. After subtracting ``least * index``, the positions only have to be
    ascending, which is isotonic regression, solved by pooling adjacent violators.
    """
    shifts = [least * index for index in range(len(wanted))]
    blocks: list[list[float]] = []
    for value, shift in zip(wanted, shifts, strict=True):
        blocks.append([value - shift])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    pooled: list[float] = [mean(block) for block in blocks for _ in block]
    return [each + shift for each, shift in zip(pooled, shifts, strict=True)]


def _draw_labels(axes: Axes, rows: Sequence[Row]) -> None:
    """Plot f with its interval against labels: lines for the oracle, markers for other teachers."""
    for value, name, up, edge in ((1, "true reward", 2, "bottom"), (0, "random actions", -2, "top")):
        axes.axhline(value, color=_INK, linewidth=0.8, linestyle=":")
        beside = axes.get_yaxis_transform() + _shift(axes, 2, up)
        axes.text(0, value, name, color=_INK, fontsize=8, transform=beside, verticalalignment=edge)
    ends = list[tuple[float, str, str]]()
    for side, mark in _MARKS.items():
        marked = [row for row in rows if row.side == side and row.f is not None]
        if marked:
            f = _draw_scores(axes, marked, mark, "-" if side in ("oracle", "networks") else "")
            ends.append((f, mark.name, mark.color))
    ticks = sorted({_asked(row) for row in rows if row.side in _MARKS})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        lambda labels, _: f"{labels:g}" if labels < 1000 else f"{labels / 1000:g}k"
    )
    axes.set_xlim(*_with_room(ticks[0], ticks[-1]))
    low, high = axes.get_ylim()
    high = max(high, 1.15)
    axes.set_ylim(min(low, -0.1 * high), high)
    axes.set_xlabel("labels")
    axes.set_ylabel("f")
    axes.grid(axis="y", alpha=0.2)
    _label_marks(axes, ticks[-1], ends)


def _with_room(first: float, last: float) -> tuple[float, float]:
    """Return limits of a logarithmic axis that leave space for names on both sides."""
    width = (last / first) ** (1 / (1 - _ROOM_LEFT - _ROOM_RIGHT)) if last > first else 10.0
    return first / width**_ROOM_LEFT, first * width ** (1 - _ROOM_LEFT)


def _shift(axes: Axes, right: float, up: float) -> ScaledTranslation:
    """Return a translation by points."""
    return ScaledTranslation(right / 72, up / 72, axes.figure.dpi_scale_trans)


def _asked(row: Row) -> int:
    """Return the number of labels given, which may be below the budget."""
    asked: int = row.results[0].get("asked", row.labels)
    return asked


def _draw_scores(axes: Axes, rows: Sequence[Row], mark: _Mark, line: str) -> float:
    """Plot a side's scores, and return f at the last point."""
    scores = [row.f for row in rows if row.f is not None]
    values = np.array([score.value for score in scores])
    bounds = np.array([score.bounds for score in scores]).T
    errors = np.maximum(np.abs(bounds - values), 0)
    at = [_asked(row) for row in rows]
    axes.errorbar(
        at,
        values,
        yerr=errors,
        capsize=2,
        markersize=6,
        color=mark.color,
        marker=mark.shape,
        linestyle=line,
        transform=axes.transData + _shift(axes, mark.aside, 0),
    )
    for bound in bounds:  # autoscaling ignores shifted artists
        axes.update_datalim(np.column_stack([at, bound]))
    axes.autoscale_view()
    return float(values[-1])


def _label_marks(axes: Axes, labels: float, names: Sequence[tuple[float, str, str]]) -> None:
    """Write names to the right of the last markers, moved apart so that they don't overlap."""
    low, high = axes.get_ylim()
    ordered = sorted(names)
    places = spread([value for value, _, _ in ordered], _NEAREST_LABELS * (high - low))
    for place, (_, name, color) in zip(places, ordered, strict=True):
        beside = axes.transData + _shift(axes, 19, 0)
        axes.text(
            labels,
            place,
            name,
            color=color,
            fontsize=8.5,
            transform=beside,
            verticalalignment="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
        )

"""Report of the label-efficiency benchmark: a Markdown table for each task."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import bootstrap, interval, iqm
from benchmarks.teaching_points import SIDES, TASKS

Result = Mapping[str, Any]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Score:
    """A statistic over all seeds with its 95 % interval."""

    value: float
    bounds: Bounds


@dataclass(frozen=True)
class Row:
    """One side with one number of labels on one task.

    Attributes:
        results: result lines, one per seed.
        final: return of the final policies.
        f: f of the final policies; None if results for random actions or the true reward are missing.
        area: f of the mean return during training.
        worst: f of the seed with the lowest return.
    """

    task: str
    side: str
    options: str
    labels: int
    steps: int
    results: Sequence[Result]
    final: Score
    f: Score | None = None
    area: Score | None = None
    worst: float | None = None

    @property
    def title(self) -> str:
        """Name of the side in tables."""
        return SIDES[self.side].title if self.side in SIDES else self.side

    def median(self, name: str) -> Any:
        """Return the elementwise median over the seeds of another measurement, NaN if there is none."""
        values = [result[name] for result in self.results if name in result]
        return np.nanmedian(values, axis=0) if values else np.nan


def finals(results: Sequence[Result]) -> NDArray[np.float64]:
    """Return the final returns as an array of shape ``(seeds,)``."""
    return np.array([result["return"] for result in results])


def areas(results: Sequence[Result]) -> NDArray[np.float64]:
    """Return the mean returns during training, shape ``(seeds,)``; random actions use the final return."""
    return np.array(
        [
            np.nanmean(np.array(result["curve"], np.float64)) if "curve" in result else result["return"]
            for result in results
        ]
    )


def relate(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], seed: int = 0
) -> Score:
    """Return f of the interquartile means; the bootstrap resamples the seeds of all three independently."""
    rng = np.random.default_rng(seed)
    drawn, drawn_low, drawn_high = (bootstrap(each, rng) for each in (values, low, high))
    value = (iqm(values) - iqm(low)) / (iqm(high) - iqm(low))
    return Score(float(value), interval((drawn - drawn_low) / (drawn_high - drawn_low)))


def rows(results: Sequence[Result]) -> Iterator[Row]:
    """Yield all rows in table order: by task, run length, side and labels."""
    groups: dict[tuple[str, int, str, str, int], list[Result]] = defaultdict(list)
    for result in results:
        key = result["task"], result["steps"], result["side"], result["options"], result["labels"]
        groups[key].append(result)
    tasks, sides = list(TASKS), list(SIDES)

    def order(key: tuple[str, int, str, str, int]) -> tuple[Any, ...]:
        task, steps, side, options, labels = key
        known = sides.index(side) if side in sides else len(sides)
        return tasks.index(task), steps, known, side, options, labels

    for key in sorted(groups, key=order):
        task, steps, side, options, labels = key
        group = groups[key]
        yield _row(
            Row(task, side, options, labels, steps, group, _score(finals(group))),
            groups.get((task, steps, "random", "", 0)),
            groups.get((task, steps, "rl", "", 0)),
        )


def _score(values: NDArray[np.float64]) -> Score:
    return Score(float(iqm(values)), interval(bootstrap(values, np.random.default_rng(0))))


def _row(row: Row, random: Sequence[Result] | None, rl: Sequence[Result] | None) -> Row:
    """Add f to a row if random actions and the true reward have results."""
    if not random or not rl or row.side in ("random", "rl"):
        return row
    low, high = finals(random), finals(rl)
    return replace(
        row,
        f=relate(finals(row.results), low, high),
        area=relate(areas(row.results), areas(random), areas(rl)),
        worst=float((finals(row.results).min() - iqm(low)) / (iqm(high) - iqm(low))),
    )


_HEAD = (
    "| side | labels | seeds | return, IQM | f | f, worst seed | f, area | accuracy by margin, % "
    "| Spearman | late | Pearson | CPU, s |"
)


def print_tables(rows: Iterable[Row]) -> None:
    """Print a table for each task and run length."""
    shown = None
    for row in rows:
        if shown != (row.task, row.steps):
            shown = row.task, row.steps
            print(f"\n{row.task}: {TASKS[row.task].env_id}, {row.steps:,} steps\n\n{_HEAD}")
            print("|" + "---|" * (_HEAD.count("|") - 1))
        print(as_markdown(row))


def as_markdown(row: Row) -> str:
    """Format a row as a line of a Markdown table."""
    accuracy = np.atleast_1d(row.median("accuracy"))
    cells = [
        row.title,
        str(row.labels or ""),
        str(len(row.results)),
        _with_bounds(row.final, _digits(row.final.value)),
        _with_bounds(row.f, 2) if row.f else "",
        "" if row.worst is None else f"{row.worst:.2f}",
        _with_bounds(row.area, 2) if row.area else "",
        " ".join(f"{100 * share:.0f}" for share in accuracy if not np.isnan(share)),
        *(_number(row.median(name), 2) for name in ("spearman", "late_spearman", "pearson")),
        _number(row.median("cpu_seconds"), 0),
    ]
    return "| " + " | ".join(cells) + " |"


def _digits(value: float) -> int:
    return 0 if abs(value) >= 100 else 1


def _with_bounds(score: Score, digits: int) -> str:
    low, high = score.bounds
    return f"{score.value:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _number(value: float, digits: int) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}f}"

"""What the runs of the benchmark of teaching say together: a table for each task, in Markdown."""

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
    """A statistic of all seeds, with its 95 % interval."""

    value: float
    bounds: Bounds


@dataclass(frozen=True)
class Row:
    """One side of one task with one number of labels.

    Attributes:
        final: returns of the policies that the runs ended with.
        f: of these; None where random actions or the true reward are missing.
        area: f of the mean return while training.
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
        return SIDES[self.side].title if self.side in SIDES else self.side

    def median(self, name: str) -> Any:
        """Of something else that was measured, number by number; NaN where it was not."""
        values = [result[name] for result in self.results if name in result]
        return np.nanmedian(values, axis=0) if values else np.nan


def finals(results: Sequence[Result]) -> NDArray[np.float64]:
    """``(seeds,)``."""
    return np.array([result["return"] for result in results])


def areas(results: Sequence[Result]) -> NDArray[np.float64]:
    """``(seeds,)`` mean returns while training; random actions do not train, and end as they began."""
    return np.array(
        [
            np.nanmean(np.array(result["curve"], np.float64)) if "curve" in result else result["return"]
            for result in results
        ]
    )


def relate(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], seed: int = 0
) -> Score:
    """f of the interquartile means; the seeds of all three are resampled, each by themselves."""
    rng = np.random.default_rng(seed)
    drawn, drawn_low, drawn_high = (bootstrap(each, rng) for each in (values, low, high))
    value = (iqm(values) - iqm(low)) / (iqm(high) - iqm(low))
    return Score(float(value), interval((drawn - drawn_low) / (drawn_high - drawn_low)))


def rows(results: Sequence[Result]) -> Iterator[Row]:
    """All sides in the order of the tables, by task and length of the runs."""
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
    """With f, where it can be said."""
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
    """One for each task and length of its runs."""
    shown = None
    for row in rows:
        if shown != (row.task, row.steps):
            shown = row.task, row.steps
            print(f"\n{row.task}: {TASKS[row.task].env_id}, {row.steps:,} steps\n\n{_HEAD}")
            print("|" + "---|" * (_HEAD.count("|") - 1))
        print(as_markdown(row))


def as_markdown(row: Row) -> str:
    """A line of the table."""
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

"""Tables of the load benchmark: medians and ranges of each figure, and ratios between sides."""

import statistics
from collections.abc import Sequence

from benchmarks.load_turns import Turn


def table(turns: Sequence[Turn]) -> str:
    """Return a Markdown table with a column per side and number of labelers and a row per figure."""
    columns = list(dict.fromkeys((turn.side, turn.labelers) for turn in turns))
    found = {column: [t.figures() for t in turns if (t.side, t.labelers) == column] for column in columns}
    lines = [
        "| | " + " | ".join(f"{side}, {labelers}" for side, labelers in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name in turns[0].figures():
        cells = [_cell([figures[name] for figures in found[column]]) for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    middle = _short(statistics.median(values))
    return f"{middle} ({_short(min(values))} to {_short(max(values))})" if len(values) > 1 else middle


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(turns: Sequence[Turn], figure: str, above: str, below: str, labelers: int) -> float:
    """Return the median over the rounds of one side's figure divided by the other side's."""
    sides = [
        [t.figures()[figure] for t in turns if (t.side, t.labelers) == (side, labelers)]
        for side in (above, below)
    ]
    return float(statistics.median(one / other for one, other in zip(*sides, strict=True)))


def failures(turns: Sequence[Turn]) -> list[str]:
    """Return a line for each kind of failure in each turn."""
    return [
        f"{turn.side}, {turn.labelers}: {kind} x {count}"
        for turn in turns
        for kind, count in turn.tally.failures.items()
    ]

"""Update the figures in the documents from the results files: ``python -m benchmarks.figures``.

Each sentence or table row in :data:`SENTENCES` appears on its page with numbers in place of the fields in
braces. A field such as ``Reacher/oracle/175`` is f for a task, side and number of labels. A suffix ``!worst``
selects the seed with the lowest return, and ``first:second`` is the ratio of two sides' CPU times. With
``--check``, outdated pages are listed but not changed.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.results import load
from benchmarks.teaching_report import Row, rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/teaching.jsonl"
TEACHING, LABELS = "docs/benchmarks/teaching.md", "docs/benchmarks/labels.md"
INDEX, OPTIONS, COMPARISON = "docs/benchmarks.md", "docs/benchmarks/options.md", "docs/comparison.md"
SENTENCES: Mapping[str, str] = {
    COMPARISON: """
its preference comparisons take {Pendulum/imitation/200:Pendulum/networks/200} times the CPU time of
RL-Teacher with networks and reach f = {Pendulum/imitation/200}, versus {Pendulum/networks/200}

On Reacher, 175 labels reach f = {Reacher/oracle/175}, and 350 reach {Reacher/oracle/350}
""",
    INDEX: """
with 50, f = {Pendulum/oracle/50} on Pendulum, {Reacher/oracle/50} on Reacher, {Hopper/oracle/50} on Hopper
and {Cheetah/oracle/50} on Cheetah

take Reacher from {Reacher/uniform/350} to {Reacher/networks/350}
""",
    "README.md": """
with 50 labels, f = {Pendulum/oracle/50} on Pendulum, {Reacher/oracle/50} on Reacher, {Hopper/oracle/50} on
Hopper and {Cheetah/oracle/50} on Cheetah
""",
    LABELS: """
| Pendulum | 100k | 50 | {Pendulum/oracle/50} | | | {Pendulum/networks/50} | | | |

| Pendulum | 100k | 200 | {Pendulum/oracle/200} | {Pendulum/mistakes-10/200} | {Pendulum/mistakes-30/200}
| {Pendulum/networks/200} | {Pendulum/networks-10/200} | {Pendulum/networks-30/200} |
{Pendulum/paper/200} |

| Reacher | 500k | 50 | {Reacher/oracle/50} | | | {Reacher/networks/50} | | | |

| Reacher | 500k | 175 | {Reacher/oracle/175} | | | {Reacher/networks/175} | | | |

| Reacher | 500k | 350 | {Reacher/oracle/350} | {Reacher/mistakes-10/350} |
{Reacher/mistakes-30/350} |
{Reacher/networks/350} | {Reacher/networks-10/350} | {Reacher/networks-30/350} | {Reacher/paper/350} |

| Hopper | 1M | 50 | {Hopper/oracle/50} | | | {Hopper/networks/50} | | | |

| Hopper | 1M | 350 | {Hopper/oracle/350} | | | {Hopper/networks/350} | | | |

| Hopper | 1M | 700 | {Hopper/oracle/700} | {Hopper/mistakes-10/700} |
{Hopper/mistakes-30/700} |
{Hopper/networks/700} | {Hopper/networks-10/700} | {Hopper/networks-30/700} | {Hopper/paper/700} |

| Cheetah | 1M | 50 | {Cheetah/oracle/50} | | | {Cheetah/networks/50} | | | |

| Cheetah | 1M | 100 | {Cheetah/oracle/100} | | | {Cheetah/networks/100} | | | |

| Cheetah | 1M | 350 | {Cheetah/oracle/350} | | | {Cheetah/networks/350} | | | |

| Cheetah | 1M | 700 | {Cheetah/oracle/700} | {Cheetah/mistakes-10/700} |
{Cheetah/mistakes-30/700} |
{Cheetah/networks/700} | {Cheetah/networks-10/700} | {Cheetah/networks-30/700} | {Cheetah/paper/700} |

| Walker | 1M | 700 | | | | {Walker/networks/700} | {Walker/networks-10/700} | {Walker/networks-30/700} |
{Walker/paper/700} |

| Swimmer | 1M | 700 | | | | {Swimmer/networks/700} | {Swimmer/networks-10/700} |
{Swimmer/networks-30/700} | {Swimmer/paper/700} |

On Pendulum, the imitation library reaches {Pendulum/imitation/200} with 200 labels and the same number of
steps in {Pendulum/imitation/200:Pendulum/networks/200} times the CPU time of networks, and
{Pendulum/imitation/50} with 50
""",
    OPTIONS: """
| `--reward.model network` alone | {Pendulum/networks/200} | {Pendulum/networks/200!worst} |
{Reacher/networks/350} | {Reacher/networks/350!worst} |

| defaults | {Pendulum/oracle/200} | {Pendulum/oracle/200!worst} | {Reacher/oracle/350} |
{Reacher/oracle/350!worst} |

| uniform queries | {Pendulum/uniform/200} | {Pendulum/uniform/200!worst} | {Reacher/uniform/350} |
{Reacher/uniform/350!worst} |

| recent segments, random pairs | {Pendulum/recent/200} | {Pendulum/recent/200!worst} |
{Reacher/recent/350} | {Reacher/recent/350!worst} |

| active queries at any age | {Pendulum/active/200} | {Pendulum/active/200!worst} |
{Reacher/active/350} | {Reacher/active/350!worst} |

| `--reward.features plain` | | | {Reacher/plain/350} | {Reacher/plain/350!worst} |

| `--reward.inputs state,action --reward.features plain` | {Pendulum/action/200} |
{Pendulum/action/200!worst} | {Reacher/action/350} | {Reacher/action/350!worst} |

| `--queries.diversity 5` | {Pendulum/diverse/200} | {Pendulum/diverse/200!worst} |
{Reacher/diverse/350} | {Reacher/diverse/350!worst} |

| `--reward.shortest_crop 0.5` | {Pendulum/crops/200} | {Pendulum/crops/200!worst} |
{Reacher/crops/350} | {Reacher/crops/350!worst} |

| `--reward.converge` | {Pendulum/converged/200} | {Pendulum/converged/200!worst} |
{Reacher/converged/350} | {Reacher/converged/350!worst} |

| `--reward.label_smoothing 0.05` | {Pendulum/bounded/200} | {Pendulum/bounded/200!worst} |
{Reacher/bounded/350} | {Reacher/bounded/350!worst} |

| `--value_refit 5` | {Pendulum/value-refit/200} | {Pendulum/value-refit/200!worst} |
{Reacher/value-refit/350} | {Reacher/value-refit/350!worst} |

| pretraining labels only | {Pendulum/pretraining/200} | {Pendulum/pretraining/200!worst} |
{Reacher/pretraining/350} | {Reacher/pretraining/350!worst} |

| coin flips | {Pendulum/coin/200} | {Pendulum/coin/200!worst} | {Reacher/coin/350} |
{Reacher/coin/350!worst} |
""",
}
"""Sentences and table rows by page, separated by blank lines."""
REPEATED: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = (
    (
        (TEACHING, r"^\| `-p synth -l 300` \| (\S+ \(.*?\)) \|"),
        ("README.md", r"with 300 labels, ShortHopper returns (\S+ \(.*?\)), like"),
    ),
    ((TEACHING, r"^\| `-p rl` \| \S+ (\(.*?\)) \|"), ("README.md", r"like `-p rl` (\(.*?\)) and")),
    (
        (TEACHING, r"^\| Stable-Baselines3 PPO \| \S+ (\(.*?\)) \|"),
        ("README.md", r"Stable-Baselines3's PPO\s+(\(.*?\)) on the true reward"),
    ),
    ((TEACHING, r"^\| 300 coin flips \| (\S+) "), ("README.md", r"with 300 coin flips, (\S+)\.$")),
    (
        (
            "docs/benchmarks/labeling-page.md",
            r"^\| from the address until both clips of the first pair play, cold \| (\d+) \|",
        ),
        ("docs/labeling.md", r"(\d+) ms \(p95 \d+\) from the address to the first pair"),
    ),
)
"""Figures that appear on two pages and have no results file: (page, regex), the original page first."""


def figure(name: str, found: Mapping[str, Row]) -> str:
    """Return the formatted value of a field; ``found`` contains the table rows by name."""
    more, _, less = name.partition(":")
    if less:
        return f"{found[more].median('cpu_seconds') / found[less].median('cpu_seconds'):.0f}"
    side, _, statistic = name.partition("!")
    row = found[side]
    value = row.worst if statistic == "worst" else row.f and row.f.value
    assert value is not None, name
    return f"{value:.2f}"


def results() -> list[Row]:
    """Return all rows of the label-efficiency tables."""
    return list(rows(load(RESULTS)))


def written(page: str, text: str, found: Mapping[str, Row]) -> str:
    """Return a page's text with the figures in its sentences updated from the results.

    Raises:
        ValueError: a sentence doesn't appear on the page exactly once.
    """
    for sentence in SENTENCES[page].split("\n\n"):
        text = _with_figures(page, text, sentence, lambda name: figure(name, found))
    return text


def _with_figures(page: str, text: str, sentence: str, value: Callable[[str], str]) -> str:
    parts = re.split(r"\{([^}]+)\}", " ".join(sentence.split()))
    words = [r"\s+".join(map(re.escape, part.split(" "))) for part in parts[::2]]
    matches = list(re.finditer(r"(-?\d*\.?\d+)".join(words), text))
    if len(matches) != 1:
        raise ValueError(f"{page} must contain this once, not {len(matches)} times: {sentence.strip()}")
    (match,) = matches
    for number, name in reversed(list(enumerate(parts[1::2], 1))):
        start, end = match.span(number)
        text = text[:start] + value(name) + text[end:]
    return text


def by_name(found: list[Row]) -> dict[str, Row]:
    """Return rows by field name, such as ``Reacher/oracle/175``, without variants."""
    return {f"{row.task}/{row.side}/{row.labels}": row for row in found if not row.options}


def differences() -> list[str]:
    """Return a message for each repeated figure that differs between its two pages."""
    found = []
    for (page, pattern), (other, repeated) in REPEATED:
        first, second = (
            re.findall(each, (ROOT / name).read_text(), re.MULTILINE)
            for name, each in ((page, pattern), (other, repeated))
        )
        if len(first) != 1 or first != second:
            found.append(f"{other} has {second}, but {page} has {first}")
    return found


def main(arguments: list[str]) -> int:
    """Update the pages, or list outdated ones with ``--check``; exit status 1 if there are problems."""
    found = results()
    named = by_name(found)
    problems = differences()
    for page in SENTENCES:
        path = ROOT / page
        before = path.read_text()
        after = written(page, before, named)
        if after != before and "--check" in arguments:
            problems.append(f"{page}: figures differ from the results; run python -m benchmarks.figures")
        elif after != before:
            path.write_text(after)
    print("\n".join(problems) or "all figures match the results")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Figures in the documents, from the result files: ``python -m benchmarks.figures`` writes them there.

A sentence of :data:`SENTENCES` stands on its page with numbers for its fields. A field such as
``Reacher/oracle/175`` is f of a task, a side and a number of labels, as in the tables of
``docs/benchmarks.md``; with a dot before it, without a leading zero; ``a side:a side`` is how many times the
processor time the first takes. ``--check`` only says which pages are not as the results are.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.results import load
from benchmarks.teaching_report import Row, as_markdown, rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/teaching.jsonl"
BENCHMARKS, COMPARISON = "docs/benchmarks.md", "docs/comparison.md"
SENTENCES: Mapping[str, str] = {
    COMPARISON: """
200 labels and as many steps bring it {Pendulum/imitation/200} of the way to the true reward, ours
{Pendulum/oracle/200}; it takes {Pendulum/imitation/200:Pendulum/oracle/200} times the processor
time

On Reacher 175 labels reach {Reacher/oracle/175} of the way to the true reward, 350 reach
{Reacher/oracle/350}
""",
    BENCHMARKS: """
.75 with 50 labels ({.Pendulum/oracle/50}), .97 with 200 ({.Pendulum/oracle/200}), .90 with 200 of
which a tenth are mistakes ({.Pendulum/mistakes-10/200})

imitation comes to {.Pendulum/imitation/200} with the same 200 labels and as many steps, in
{Pendulum/imitation/200:Pendulum/oracle/200} times the processor time, and to
{.Pendulum/imitation/50} with 50

.90 with 175 labels ({.Reacher/oracle/175}), .97 with 350 ({.Reacher/oracle/350}), .93 with 350 and
mistakes ({.Reacher/mistakes-10/350})

the numbers alone leave it at {.Reacher/plain/175}, {.Reacher/plain/350} and {.Reacher/plain-10/350}

1.0 with 700 and .85 with 700 and mistakes, comes to {.Hopper/oracle/350}, {.Hopper/oracle/700} and
{.Hopper/mistakes-10/700}

aimed at .75 with 100 labels and .95 with 350, comes to {.Cheetah/oracle/100} and
{.Cheetah/oracle/350}

further on Reacher ({.Reacher/oracle/175} with 175, the paper's {.Reacher/paper/350} with 350) and
as far on Pendulum ({.Pendulum/oracle/50} with 50, the paper's {.Pendulum/paper/200} with 200), as
many further on Hopper ({.Hopper/oracle/700}, the paper's {.Hopper/paper/700}) and on Walker
({.Walker/oracle/700}, the paper's {.Walker/paper/700}
""",
}
"""The sentences of a page, with a blank line between two."""
REPEATED: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = (
    (
        (BENCHMARKS, r"^\| `-p synth -l 300` \| (.*) \|$"),
        ("README.md", r"^\| `-p synth -l 300` \| (.*) \|$"),
    ),
    (
        (BENCHMARKS, r"^\| Stable-Baselines3 PPO \| (.*) \|$"),
        ("README.md", r"^\| Stable-Baselines3 PPO \| (.*) \|$"),
    ),
    ((BENCHMARKS, r"^\| `-p rl` \| (.*) \|$"), ("README.md", r"^\| `-p rl` \| (.*) \|$")),
    ((BENCHMARKS, r"^\| random actions \| (8.*) \|$"), ("README.md", r"^\| random actions \| (.*) \|$")),
    ((BENCHMARKS, r"^\| 300 coin flips \| (.*) \|$"), ("README.md", r"^\| 300 coin flips \| (.*) \|$")),
    (
        (BENCHMARKS, r"^\| Hopper-v5, 300,000 steps .* ([\d.]+): \*\*median"),
        (COMPARISON, r"the worst one ([\d.]+) \(\[all five\]"),
    ),
    (
        (BENCHMARKS, r"^\| from the address until both clips of the first pair play, cold \| (\d+) \|"),
        ("docs/labeling.md", r"(\d+) ms \(p95 \d+\) from the address to the first pair"),
    ),
    (
        ("docs/gallery.md", r"counter-clockwise \| Reacher-v1 .* ([\d.]+) rad \|$"),
        ("docs/teachers.md", r"counter_clockwise -l 200 -t 2e5` reaches ([\d.]+) radians"),
    ),
)
"""Figures without a result file that stand on two pages, first where they were measured."""


def figure(name: str, found: Mapping[str, Row]) -> str:
    """The number that a field stands for."""
    more, _, less = name.partition(":")
    if less:
        return f"{found[more].median('cpu_seconds') / found[less].median('cpu_seconds'):.0f}"
    score = found[name.removeprefix(".")].f
    assert score is not None, name
    written = f"{score.value:.2f}"
    return re.sub(r"^(-?)0\.", r"\1.", written) if name.startswith(".") else written


def results() -> list[Row]:
    """All rows of the tables."""
    return list(rows(load(RESULTS)))


def written(page: str, text: str, found: Mapping[str, Row]) -> str:
    """A page with the figures of its sentences as the results are.

    Raises:
        ValueError: a sentence is not on the page, or more than once.
    """
    for sentence in SENTENCES[page].split("\n\n"):
        text = _with_figures(page, text, sentence, lambda name: figure(name, found))
    return text


def _with_figures(page: str, text: str, sentence: str, value: Callable[[str], str]) -> str:
    parts = re.split(r"\{([^}]+)\}", " ".join(sentence.split()))
    words = [r"\s+".join(map(re.escape, part.split(" "))) for part in parts[::2]]
    matches = list(re.finditer(r"(-?\d*\.?\d+)".join(words), text))
    if len(matches) != 1:
        raise ValueError(f"{page}: expected once, found {len(matches)} times: {sentence.strip()}")
    (match,) = matches
    for number, name in reversed(list(enumerate(parts[1::2], 1))):
        start, end = match.span(number)
        text = text[:start] + value(name) + text[end:]
    return text


def by_name(found: list[Row]) -> dict[str, Row]:
    """Rows by what fields call them; of runs of a task's own length."""
    return {f"{row.task}/{row.side}/{row.labels}": row for row in found if not row.options}


def missing_rows(text: str, found: list[Row]) -> list[str]:
    """Lines of the tables that a page should have and does not."""
    lines = set(text.splitlines())
    return [line for line in map(as_markdown, found) if line not in lines]


def differences() -> list[str]:
    """Figures that stand on two pages and are not the same."""
    found = []
    for (page, pattern), (other, repeated) in REPEATED:
        first, second = (
            re.findall(each, (ROOT / name).read_text(), re.MULTILINE)
            for name, each in ((page, pattern), (other, repeated))
        )
        if len(first) != 1 or first != second:
            found.append(f"{other} has {second}, {page} {first}")
    return found


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` say which would change; what cannot be written is told as well."""
    found = results()
    named = by_name(found)
    problems = differences()
    problems += [
        f"{BENCHMARKS} lacks {line}" for line in missing_rows((ROOT / BENCHMARKS).read_text(), found)
    ]
    for page in SENTENCES:
        path = ROOT / page
        before = path.read_text()
        after = written(page, before, named)
        if after != before and "--check" in arguments:
            problems.append(f"{page} is not as the results are; run python -m benchmarks.figures")
        elif after != before:
            path.write_text(after)
    print("\n".join(problems) or "every figure is as the results are")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

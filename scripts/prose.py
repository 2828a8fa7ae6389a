"""Check the prose of code, documents and commit subjects.

    python scripts/prose.py              fail if a rule has more violations than its baseline
    python scripts/prose.py --list RULE  show each violation of one rule
    python scripts/prose.py --lower      lower the baselines to the current counts

``scripts/prose_baseline.json`` has the allowed number of violations per rule, which may only decrease.
Tests have baselines of their own, and the words of their names follow the same rules.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASELINE = Path("scripts/prose_baseline.json")
START = "7080ac89b9fe22251eb24eb27d234c05d19acace"  # subjects up to this commit are not checked
LONGEST_SUBJECT = 72
SUBJECTS = "subject over 72 characters"
OPENINGS = ("The same", "The reverse", "Whether", "What", "How", "As", "Those", "Where", "Who", "Of")
TESTS = "tests/"
SUFFIXES = {".py", ".pyi", ".md", ".html", ".js"}
GENERATED = ("build/", "dist/", "docs/_build/", "docs/generated/", "runs/", "state/")
LEFT_OUT = ("tests/test_prose.py", "scripts/prose.py", "human_feedback_site/feedback/migrations/", *GENERATED)

PHRASES: Mapping[str, str] = {
    # A space matches any whitespace; a match of the group `fine` isn't a violation.
    "numbers that are none": r"\bthat (?:is|are) (?:none|no (?:number|probability|array)s?)\b",
    "comes to": r"\b(?:comes|came) to\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "so many times as many": r"\bso many times as\b",
    "is worth": r"\ba nat\b|\bwhat (?:\w+ ){1,4}(?:is|are) worth\b|\bis worth beside\b",
    "worth asking": r"\bworth asking\b",
    "deviation": r"(?P<fine>(?:standard|absolute) )?\bdeviations?\b",
    "whoever": r"\bwho(?:so)?ever\b",
    "again and again": r"\bagain and again\b",
    "of before": r"\b(?:of|from) before\b(?! \w)|\b(?:predictor|policy) of now\b",
    "a length of nothing": r"\b(?:lessons?|file|dataset|episodes?) of (?:nothing|none)\b",
    "people at most": r"\bpeople at most\b",
    "take the answer back": r"\b(?:take|takes|took|taking) (?:\w+ ){1,3}answer back\b",
    "as careless as": r"\bas careless as\b",
    "is told": r"\b(?:is|are) told (?:in|of|apart by)\b",
    "in the manner of": r"\bin the manner of\b",
    "anew": r"\banew\b",
    "in vain": r"\bin vain\b",
    "blanks": r"\bblanks\b",
    "the present one": r"\bpresent (?:policy|predictor|network|value)s?\b",
    "sure pair": r"\bsure pairs?\b",
    "British spelling": r"\b\w*(?:behaviour|regularis|normalis|colour|neighbour|labelled(?!by)|labelling)\w*",
}
"""Regexes of phrases to avoid, by rule; the glossary in docs/ has the standard terms."""


@dataclass(frozen=True)
class Violation:
    """One violation of a rule; ``place`` is ``path:line`` or a commit."""

    rule: str
    place: str
    text: str


def compile_phrase(phrase: str) -> re.Pattern[str]:
    """Compile a phrase so that each space also matches a line break and a following comment sign."""
    return re.compile(phrase.replace(" ", r"\s+(?:#\s*)?"), re.IGNORECASE)


COMPILED = {rule: compile_phrase(phrase) for rule, phrase in PHRASES.items()}
OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b")


def find_files(root: Path) -> list[str]:
    """Return the paths of the files to check: all files except ignored ones, or all without git."""
    listed = run_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        names = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        paths = [str(name) for name in names if not any(part.startswith(".") for part in name.parts)]
    else:
        paths = listed.split("\0")
    return sorted(
        path for path in paths
        if Path(path).suffix in SUFFIXES and not path.startswith(LEFT_OUT) and (root / path).is_file()
    )  # fmt: skip


def run_git(root: Path, *arguments: str) -> str | None:
    """Return git's output, or None if it fails, for example without git or a repository."""
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return ran.stdout if ran.returncode == 0 else None


def check_phrases(path: str, text: str) -> Iterator[Violation]:
    """Yield each banned phrase in a file."""
    for rule, phrase in COMPILED.items():
        for match in phrase.finditer(text):
            if not match.groupdict().get("fine"):
                line = text.count("\n", 0, match.start()) + 1
                yield Violation(rule, f"{path}:{line}", " ".join(match[0].split()))


def check_docstrings(path: str, text: str) -> Iterator[Violation]:
    """Yield each docstring, including those of attributes, that starts with a banned opening."""
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            line = value.value.strip().partition("\n")[0]
            if opening := OPENING.match(line):
                yield Violation(f"docstring: {opening[1]}", f"{path}:{value.lineno}", line)


def check_names(path: str, text: str) -> Iterator[Violation]:
    """Yield each name of a test with a banned opening or phrase."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = node.name.removeprefix("test_").replace("_", " ")
            place = f"{path}:{node.lineno}"
            if (opening := OPENING.match(words.capitalize())) and opening[1] != "The same":
                yield Violation(f"test name: {opening[1]}", place, words)
            for found in check_phrases(path, words):
                yield replace(found, place=place)


def check_subjects(root: Path, start: str) -> list[Violation] | None:
    """Return long commit subjects since ``start``; None if that commit isn't in the history."""
    log = run_git(root, "log", "--no-merges", "--format=%h %s", f"{start}..HEAD")
    if log is None:
        return None
    commits = [line.partition(" ") for line in log.splitlines()]
    return [Violation(SUBJECTS, name, text) for name, _, text in commits if len(text) > LONGEST_SUBJECT]


def check_tree(root: Path) -> list[Violation]:
    """Return all violations in the files below a folder."""
    found: list[Violation] = []
    for path in find_files(root):
        text = (root / path).read_text(encoding="utf-8")
        here = [*check_phrases(path, text)]
        if path.endswith(".py"):
            here += [*check_docstrings(path, text), *check_names(path, text)]
        if path.startswith(TESTS):
            here = [replace(each, rule=TESTS + each.rule) for each in here]
        found += here
    return found


def count(found: Sequence[Violation]) -> dict[str, int]:
    """Return the number of violations by rule, including zeros."""
    counts = dict.fromkeys((*PHRASES, *(f"docstring: {opening}" for opening in OPENINGS), SUBJECTS), 0)
    return {**counts, **Counter(violation.rule for violation in found)}


def report(counts: Mapping[str, int], baseline: Mapping[str, int], found: Sequence[Violation]) -> int:
    """Print counts, and the violations of rules above their baseline; return the exit status."""
    for rule, number in {**dict.fromkeys(baseline, 0), **counts}.items():
        allowed = baseline.get(rule, 0)
        if number or allowed:
            note = " TOO MANY" if number > allowed else " (lower it: --lower)" if number < allowed else ""
            print(f"prose: {number:4} of {allowed:4} {rule}{note}")
    worse = [rule for rule, number in counts.items() if number > baseline.get(rule, 0)]
    for violation in found:
        if violation.rule in worse:
            print(f"{violation.place}: {violation.rule}: {violation.text}")
    print(f"prose: {sum(counts.values())} violations, {len(worse)} rules above their baseline")
    return 1 if worse else 0


def main() -> int:
    """Check all files and commit subjects; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", metavar="RULE", help="show each violation of a rule and exit")
    parser.add_argument("--lower", action="store_true", help="lower the baselines to the current counts")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--start", default=START, help=argparse.SUPPRESS)
    options = parser.parse_args()
    found = check_tree(options.root)
    subjects = check_subjects(options.root, options.start)
    if subjects is None:
        print(f"prose: commit subjects NOT CHECKED, as {options.start[:7]} is not in this copy's history")
    found += subjects or []
    if options.list:
        print(*(f"{each.place}: {each.text}" for each in found if each.rule == options.list), sep="\n")
        return 0
    counts = count(found)
    path = options.root / BASELINE
    baseline: dict[str, int] = json.loads(path.read_text())
    if options.lower:
        baseline = {rule: min(number, counts.get(rule, 0)) for rule, number in baseline.items()}
        path.write_text(
            json.dumps({rule: number for rule, number in baseline.items() if number}, indent=2) + "\n"
        )
    return report(counts, baseline, found)


if __name__ == "__main__":
    sys.exit(main())

"""The linter for prose: what it finds, and that its baselines only shrink."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import prose
from tests.waiting import completed

ROOT = Path(__file__).parents[1]


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "prose.py"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def git(root: Path, *words: str) -> str:
    names = {f"GIT_{role}_{field}": "x@x" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null"}
    ran = completed(["git", *words], cwd=root, env=environment, check=True)
    return ran.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree without git that has one violation, and no baseline for it."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / prose.BASELINE).write_text("{}")
    (tmp_path / "page.md").write_text("The loss comes\nto 3.\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a fit came to numbers", "comes to"),
        ("a fit came\n# to numbers", "comes to"),
        ("numbers that are none", "numbers that are none"),
        ("Mend it", "mend"),
        ("so many times as many", "so many times as many"),
        ("what a nat of entropy is", "is worth"),
        ("of deviation 1", "deviation"),
        ("the behaviour", "British spelling"),
    ],
)
def test_a_banned_phrase_is_found(text: str, rule: str) -> None:
    (found,) = prose.check_phrases("x.md", f"\n{text}.")
    assert (found.rule, found.place) == (rule, "x.md:2")


@pytest.mark.parametrize(
    "text", ["the standard\ndeviation", "recommended", "they come to the site", "aria-labelledby", "behavior"]
)
def test_a_standard_term_is_not(text: str) -> None:
    assert list(prose.check_phrases("x.md", text)) == []


def test_a_docstring_that_opens_with_a_half_sentence_is_found() -> None:
    source = '"""The same."""\nX = 1\n"""Whether."""\ndef f():\n    """Howl at nothing, as `What` does."""\n'
    source += '    x = "What"\n    """\n    As before.\n    """\n'
    rules = [each.rule for each in prose.check_docstrings("x.py", source)]
    assert sorted(rules) == ["docstring: As", "docstring: The same", "docstring: Whether"]


def test_names_of_tests_are_read_as_words() -> None:
    source = "def test_what_it_is() -> None: ...\ndef test_it_comes_to() -> None: ...\n"
    source += "def what_is() -> None: ...\ndef test_somewhat() -> None: ...\n"
    found = [(each.rule, each.place) for each in prose.check_names("x.py", source)]
    assert found == [("test name: What", "x.py:1"), ("comes to", "x.py:2")]


def test_tests_have_a_baseline_of_their_own(tree: Path) -> None:
    (tree / "tests").mkdir()
    (tree / "tests" / "page.md").write_text("The loss comes to 3.")
    (tree / prose.BASELINE).write_text('{"comes to": 1}')
    refused = run(tree)
    assert refused.returncode == 1
    assert "tests/page.md:1: tests/comes to: comes to\n" in refused.stdout
    (tree / prose.BASELINE).write_text('{"comes to": 1, "tests/comes to": 1}')
    assert run(tree).returncode == 0


def test_a_new_violation_fails_and_a_baseline_only_shrinks(tree: Path) -> None:
    refused = run(tree)
    assert refused.returncode == 1
    assert "page.md:1: comes to: comes to\n" in refused.stdout
    assert run(tree, "--lower").returncode == 1
    assert json.loads((tree / prose.BASELINE).read_text()) == {}

    (tree / prose.BASELINE).write_text('{"comes to": 2, "mend": 1}')
    assert run(tree).returncode == 0
    assert run(tree, "--lower").returncode == 0
    assert json.loads((tree / prose.BASELINE).read_text()) == {"comes to": 1}
    assert run(tree, "--list", "comes to").stdout.endswith("page.md:1: comes to\n")


def test_long_subjects_are_found_since_a_commit_where_there_is_one(tree: Path) -> None:
    (tree / "page.md").write_text("")
    assert "NOT CHECKED" in run(tree).stdout
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "x" * 80)
    start = git(tree, "rev-parse", "HEAD")
    git(tree, "commit", "-q", "--allow-empty", "-m", "y" * 72)
    assert run(tree, "--start", start).returncode == 0
    git(tree, "commit", "-q", "--allow-empty", "-m", "z" * 73)
    refused = run(tree, "--start", start)
    assert refused.returncode == 1
    assert f"{prose.SUBJECTS}: {'z' * 73}\n" in refused.stdout
    shallow = run(tree)
    assert (shallow.returncode, "NOT CHECKED" in shallow.stdout) == (0, True)

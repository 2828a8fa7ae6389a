"""The documents: they build without a warning, their links lead somewhere, and what they show can be done."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from teacher.teach import build_parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
GENERATED = ROOT / "docs" / "generated"


@pytest.mark.timeout(900)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Links to pages, headings and files among them; written to nowhere, which takes half the time."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--builder",
        "dummy",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
    ]
    built = subprocess.run([*command, ROOT / "docs", tmp_path], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    settings = (GENERATED / "settings.md").read_text()
    long_options = re.findall(r"--[a-z_.]+(?=[ ,\n])", build_parser().format_help())
    assert {option for option in long_options if option not in {"--help", "--resume", "--preset"}} <= set(
        re.findall(r"`(--[a-z_.]+)`", settings)
    )
    assert "## `POST /api/v1/experiments/{name}/leases`" in (GENERATED / "rest.md").read_text()


def slug(heading: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    return {
        slug(heading) for heading in re.findall(r"^#+ (.*)", FENCED.sub("", page.read_text()), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """As GitHub shows the pages; those that Sphinx generates are left to its build."""
    links = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text()))
    for link in links:
        if re.match(r"[a-z]+:|generated/", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_pictures_are_small_enough_to_load() -> None:
    for path in (ROOT / "docs" / "pictures").rglob("*.*"):
        assert path.stat().st_size < 500_000, path

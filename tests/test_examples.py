"""Every program in examples/ runs in its short form, as examples/README.md says it must."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_every_example_runs_in_its_short_form(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, where the libraries are imported already; its folder is searched, as Python does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [str(program), "--short"])
    runpy.run_path(str(program), run_name="__main__")
    assert capfd.readouterr().out.strip()


def test_every_example_is_on_their_page() -> None:
    listed = re.findall(r"^\| \[[^\]]+\]\((\w+\.py)\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed == [program.name for program in PROGRAMS]

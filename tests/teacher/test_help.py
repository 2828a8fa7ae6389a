"""What a newcomer reads first is true, short, and names everything."""

import dataclasses
import itertools
import re
import shlex
from pathlib import Path

import pytest

from teacher.config import PARTS, TeachConfig
from teacher.help_text import HELP, SECTIONS
from teacher.teach import COMMANDS, main, parse_arguments


def test_help_is_short_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-h", "--help"):
        with pytest.raises(SystemExit, match=r"^(0|None)$"):
            main([option])
    said = capsys.readouterr().out
    assert said == 2 * HELP
    assert len(HELP.splitlines()) <= 45
    assert max(map(len, HELP.splitlines())) < 80


def test_every_command_is_in_the_help_and_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(re.findall(r"^  teach ([a-z]+) ", HELP, re.MULTILINE)) == set(COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit, match=r"^0$"):
            main([name, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: teach {name} ")


def test_the_examples_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^  teach (-p .*)", HELP, re.MULTILINE)
    assert [parse_arguments(shlex.split(line))[0].predictor for line in examples] == ["human", "synth", "rl"]


def test_all_options_are_listed_in_sections(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {field.name for field in dataclasses.fields(TeachConfig)} - set(PARTS)
    listed = list(itertools.chain(*SECTIONS.values()))
    assert sorted(listed) == sorted(fields)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help-all"])
    said = capsys.readouterr().out
    assert all(f"--{name}" in said for name in fields)
    assert all(f"\n{title}:\n" in said for title in (*SECTIONS, *PARTS))
    # argparse breaks no list of choices
    assert {line for line in said.splitlines() if len(line) > 80} <= {
        line for line in said.splitlines() if line.lstrip().startswith("--schedule {")
    }


@pytest.mark.parametrize(
    ("word", "says"), [("exprot", "did you mean teach export?"), ("humble", "teach --help lists all")]
)
def test_an_unknown_command_is_one_line(word: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "runs/x"]) == 2
    assert capsys.readouterr().err == f"teach: expected an option or a command, got {word!r}; {says}\n"

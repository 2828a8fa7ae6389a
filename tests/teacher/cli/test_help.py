"""Test what a newcomer reads first is true, short, and names everything."""

import dataclasses
import itertools
import re
import shlex
from pathlib import Path

import pytest

from teacher.cli.help_text import HELP, SECTIONS
from teacher.labeling import bots
from teacher.settings.config import NO_OPTIONS, PARTS, TeachConfig
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
    assert [parse_arguments(shlex.split(line)).config.predictor for line in examples] == [
        "human",
        "synth",
        "rl",
    ]


def test_options_by_section(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {field.name for field in dataclasses.fields(TeachConfig)} - NO_OPTIONS
    listed = list(itertools.chain(*SECTIONS.values()))
    assert sorted(listed) == sorted(fields)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help-all"])
    said = capsys.readouterr().out
    assert all(f"--{name}" in said for name in (*fields, "resume", "reopen", "preset"))
    parts = [f"--{part}.{field.name}" for part, kind in PARTS.items() for field in dataclasses.fields(kind)]
    assert all(option in said for option in parts)
    assert "InvertedPendulum-v1 or teacher/Pendulum-v1" in said
    assert all(f"\n{title}:\n" in said for title in (*SECTIONS, *PARTS))
    # argparse breaks no list of choices
    assert {line for line in said.splitlines() if len(line) > 80} <= {
        line for line in said.splitlines() if line.lstrip().startswith("--schedule {")
    }


@pytest.mark.parametrize(
    ("word", "says"),
    [("exprot", "did you mean teach export?"), ("humble", "teach --help lists all commands")],
)
def test_an_unknown_command_is_one_line(word: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "runs/x"]) == 2
    assert capsys.readouterr().err == f"teach: unknown command {word!r}; {says}\n"


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out == HELP


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-p rl -e Pendulum-v1 -n x --sed 3", "teach: unknown option --sed; did you mean --seed?"),
        ("-p rl -e Pendulum-v1 -n x --sed=3", "teach: unknown option --sed; did you mean --seed?"),
        (
            "--resume runs/x --reward.membrs 3",
            "--reward.membrs; did you mean --reward.members?",
        ),
        ("play runs/x --reward", "teach play: unknown option --reward; did you mean --rewards?"),
        ("record runs/x a.npz --episode 3", "unknown option --episode; did you mean --episodes?"),
        ("doctor --zzz secret", "teach doctor: unknown option --zzz ("),
        ("ls runs more", "teach ls: unexpected argument 'more'"),
    ],
)
def test_unknown_option_gets_a_hint(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(line.split())
    said = capsys.readouterr().err
    assert says in said
    assert "secret" not in said
    assert said.count("\n") == 1


def test_abbreviated_option_hides_its_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("tt_x")
    line = f"--site http://127.0.0.1:9 --experiment x --token-file {tmp_path / 'token'} --token tt_secret"
    with pytest.raises(SystemExit, match=r"^2$"):
        bots.main(line.split())
    said = capsys.readouterr().err
    assert "unknown option --token; did you mean --token-file?" in said
    assert "secret" not in said

"""Test what a newcomer reads first, how fast programs start, and what is said about the installation."""

import dataclasses
import gc
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from teacher.cli import installation
from teacher.cli.help_text import HELP, SECTIONS
from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.errors import ConfigError
from teacher.labeling import bots
from teacher.loading import loading
from teacher.settings.config import NO_OPTIONS, PARTS, TeachConfig
from teacher.teach import COMMANDS, main, parse_arguments
from tests.teacher.conftest import config_in, save_new
from tests.waiting import completed


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


def test_the_examples_are_accepted(here: Path) -> None:
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


def load(*modules: str) -> None:
    with loading():
        assert not gc.isenabled()
        for module in modules:
            importlib.import_module(module)


def test_garbage_is_collected_again_however_the_imports_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    frozen = gc.get_freeze_count()
    load("string")  # which is there already
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen
    with pytest.raises(ModuleNotFoundError):
        load("colorsys", "teacher.nothing")
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen


SLOW = ("torch", "mujoco", "matplotlib", "tensorboard", "boto3", "redis", "celery", "requests", "django")
LINES = {
    "--help": 0,
    "-p rl -e ShortHopper-v1 -n x --sed 3": 2,
    "-p rl -e ShortHopper-v1 -n x -s many": 2,
    "-p rl -e teacher/ShortHoper-v1 -n x": 2,
    "-p rl -e ALE/Pnog-v5 -n x": 2,
    "--resume no/such/run": 2,
    "humble": 2,
    "play no/such/run": 2,
    "export no/such/run labels.npz": 2,
    "record no/such/run expert.npz": 2,
    "ls": 0,
    **{f"{command} --help": 0 for command in COMMANDS},
    **{f"{command} --unknown": 2 for command in COMMANDS},
}
PROGRAM = """
import json, sys
from teacher.teach import main
lines, slow = json.loads(sys.argv[1])
for line in lines:
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = ended.code or 0
    loaded = set(slow) & set(sys.modules)
    print("->", line, status, *sorted(loaded), sep="|")
"""


def test_a_line_that_trains_nothing_loads_nothing_slow(tmp_path: Path) -> None:
    """In one process, where what one line loads is seen after it and all that follow."""
    config = config_in(tmp_path / "runs", "Pendulum-v1", n_labels=4, no_videos=False)
    save_new(config)
    Ledger(config.run_dir / LEDGER_NAME).close()
    command = [sys.executable, "-c", PROGRAM, json.dumps([list(LINES), SLOW])]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    reports = [line for line in said.splitlines() if line.startswith("->|")]
    assert reports == [f"->|{line}|{status}" for line, status in LINES.items()]


ROOT = Path(__file__).parents[3]
FOREIGN = "raise SystemExit('the foreign package was imported')\n"


def test_the_version_is_that_of_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^(0|None)$"):
        main(["--version"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"rl-teacher {project['version']}\n"


@pytest.mark.parametrize("name", ["agents/__init__.py", "agents.py"])
@pytest.mark.parametrize("module", ["teacher", "teacher.teach"])
def test_foreign_agents_package_is_refused(name: str, module: str, tmp_path: Path) -> None:
    foreign = tmp_path / name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text(FOREIGN)
    distribution = tmp_path / "openai_agents-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: openai-agents\nVersion: 1.0\n")
    (distribution / "top_level.txt").write_text("agents\n")
    command = [sys.executable, "-m", module, "ls"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    refused = completed(command, cwd=tmp_path, env=environment)
    found = foreign.parent if name.endswith("__init__.py") else foreign
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr == (
        f"teach: RL-Teacher's 'agents' package in {ROOT} is hidden by {found} from openai-agents; "
        "remove that from Python's path, or install RL-Teacher in its own virtual environment\n"
    )


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda init: init.write_text(FOREIGN), "was overwritten"),
        (lambda init: init.write_bytes(b"\0"), "was overwritten"),
        (lambda init: init.unlink(), "was overwritten"),  # as pip does after the other is uninstalled
        (lambda init: (init.unlink(), init.parent.rmdir()), "is missing"),
    ],
    ids=["replaced", "damaged", "removed", "missing"],
)
def test_our_own_agents_are_refused_where_another_distribution_replaced_them(
    spoil: Callable[[Path], object], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = tmp_path / "agents" / "__init__.py"
    init.parent.mkdir()
    shutil.copy(ROOT / "agents" / "__init__.py", init)
    monkeypatch.setattr(installation, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.delitem(sys.modules, "agents")
    installation.check_agents()
    spoil(init)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=found):
        installation.check_agents()

"""Test what the stack prints for the user to type, and what it says about what the user typed."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.text import Text

from stack.__main__ import farewell, main, welcome
from stack.experiment import Experiment, ExperimentOptions
from stack.folder import PORTS, Folder
from stack.process import StackError
from stack.site import Site


def site_in(folder: str) -> Site:
    """A stack's folder as it is once the stack runs."""
    kept = Folder(Path(folder))
    with kept.held():
        kept.write_env({"TEACHER_SITE_URL": "http://site"})
    return Site.of(kept, {name: ports[0] for name, ports in PORTS.items()})


def run(line: str) -> subprocess.CompletedProcess[str]:
    """Type it into a shell that knows nothing."""
    return subprocess.run(["env", "-i", "sh", "-ec", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", [".", "env", "a folder", "-x", "below/[b]it", "../beside"])
def test_printed_command_works(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    site = site_in(folder)
    lines = Text.from_markup(welcome(site)).plain.splitlines()
    first, second = (line[7:] for line in lines[2:4])
    teach = second.partition(" -p human ")[0]
    done = run(f"{first}; command -v {teach}; echo $TEACHER_SITE_URL")
    assert done.returncode == 0, done.stderr
    found, url = done.stdout.splitlines()
    assert Path(found).samefile(Path(sys.executable).with_name("teach"))
    assert url == "http://site"

    remove = farewell(site).rpartition("To remove its data: ")[2]
    done = run(remove)
    assert done.returncode == 0, done.stderr
    assert not site.folder.path.exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": 3}, "--labels: expected 4 or more; got 3"),
        ({"pretrain_labels": 9}, "--pretrain-labels: expected no more than --labels (8); got 9"),
        ({"steps": 0}, "--steps: expected 1 or more; got 0"),
        ({"env_id": ""}, "--env: expected an environment ID; got ''"),
    ],
)
def test_error_names_the_stacks_option(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    options = {"env_id": "ShortHopper-v1", "labels": 8, "pretrain_labels": None, "steps": 9, "bots": 1}
    with pytest.raises(StackError) as caught:
        Experiment(site_in(str(tmp_path / "stack")), ExperimentOptions(**options | changed))  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_no_folder_is_not_this_one(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--dir", ""])
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("stack: argument --dir: expected a folder path, got '' (")


def test_a_folder_of_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    command = [sys.executable, "-m", "stack", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"stack: {tmp_path} contains files that don't belong to a stack; set --dir to a new or empty folder"
    )
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["secrets.json", "ports.json"])
def test_damaged_file_refused(tmp_path: Path, damaged: Callable[[bytes], Iterator[bytes]], name: str) -> None:
    folder = Folder(tmp_path)
    with folder.held():
        folder.secrets()
        folder.ports()
        refused, intact = list[str](), (tmp_path / name).read_bytes()
        for content in damaged(intact):
            (tmp_path / name).write_bytes(content)
            try:
                folder.secrets()
                folder.ports()
            except StackError as error:
                refused.append(str(error))
    assert len(refused) > 50
    assert all(re.fullmatch(r".* is damaged: .*; restore the file from a backup", words) for words in refused)

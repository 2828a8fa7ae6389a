"""The version, and packages of the same name as ours."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import agents
from teacher.cli import installation
from teacher.errors import ConfigError
from teacher.teach import main

ROOT = Path(__file__).parents[3]
FOREIGN = "raise SystemExit('the foreign package was imported')\n"


def test_the_version_is_that_of_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^(0|None)$"):
        main(["--version"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"rl-teacher {project['version']}\n"


def test_our_own_agents_are_accepted() -> None:
    assert Path(str(agents.__file__)).is_relative_to(installation.ROOT)
    installation.check_agents()


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
    refused = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
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

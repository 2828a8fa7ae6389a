"""The list of runs says how far each came, and changes none."""

import fcntl
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from teacher.cli.ls import summarize
from teacher.queries.collector import CollectorStatus, SyntheticTeacher
from teacher.reporting.timing import ProgressFile
from teacher.settings.config import TeachConfig
from teacher.settings.saved_config import load_config, save_config
from teacher.teach import main
from teacher.training.builder import open_run


@pytest.fixture(scope="module")
def made(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that is done, one that was stopped, and one that never began."""
    runs = tmp_path_factory.mktemp("runs")
    shutil.copytree(finished_run, runs / "Pendulum-v1" / "done")
    settings: dict[str, Any] = {"env_id": "Pendulum-v1", "no_videos": True, "runs_dir": str(runs)}
    with open_run(TeachConfig(name="stopped", predictor="synth", n_labels=8, **settings)):
        pass
    new = TeachConfig(name="new", predictor="rl", **settings)
    new.run_dir.mkdir()
    save_config(new, uuid.uuid4())
    return runs


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """Return a copy that may be changed."""
    return shutil.copytree(made, tmp_path / "runs")


def test_runs_are_listed_with_how_far_they_came(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(runs)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["run", "rewards", "steps", "labels", "return", "saved", "state"]
    rows = {line.split()[0].rpartition("/")[2]: line.split() for line in said[1:]}
    assert list(rows) == ["new", "done", "stopped"]
    done = summarize(runs / "Pendulum-v1" / "done")
    assert done.steps >= 256
    assert done.last_return is not None
    assert -2000 < done.last_return < -500  # 200 steps of hardly any skill
    assert rows["done"][1:5] == [
        "synth",
        f"{done.steps / 1000:.3g}k/256",
        "12/12",
        f"{done.last_return:.1f}",
    ]
    assert [row[-1] for row in rows.values()] == ["new", "done", "stopped"]
    assert rows["new"][1:3] == ["rl", "0/5M"]


def test_a_run_finished_on_the_site_is_finished_and_keeps_its_return(runs: Path) -> None:
    folder = runs / "Pendulum-v1" / "done"
    before = summarize(folder).last_return
    config, run_id = load_config(folder)
    save_config(replace(config, num_timesteps=10**6), run_id)
    assert summarize(folder).state == "stopped"
    with open_run(folder) as run:
        run.begin()  # and is stopped before its first episode has ended
    assert (summarize(folder).state, summarize(folder).last_return) == ("stopped", before)
    with open_run(folder) as run:
        run.begin()
        assert run.teaching is not None
        run.teaching.collector = Finished(run.teaching.ledger, 1)
    assert (summarize(folder).state, summarize(folder).last_return) == ("finished", before)


class Finished(SyntheticTeacher):
    """Reports that the experiment was finished on the site."""

    @property
    def status(self) -> CollectorStatus:
        return CollectorStatus(state="finished")


def test_a_run_that_is_held_is_running_and_can_still_begin(runs: Path) -> None:
    folder = runs / "Pendulum-v1" / "stopped"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert summarize(folder).state == "running"
    assert summarize(folder).state == "stopped"
    with open_run(folder):
        pass


def test_training_run_shows_its_current_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "Pendulum-v1" / "stopped"
    ProgressFile(folder).write(1_234_000, 7200.0)
    assert summarize(folder).steps == 0
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["ls", str(runs)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"/stopped +synth +1\.23M/5M .* running, 2 h left$", said, re.MULTILINE)


def test_a_damaged_run_does_not_hide_the_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "Pendulum-v1" / "done" / "checkpoint.npz").write_bytes(b"PK")
    assert main(["ls", str(runs)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[-1].startswith("damaged: ")
    assert "not a readable checkpoint" in said[-1]


def test_removed_run_is_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_what_goes(folder: Path) -> tuple[TeachConfig, uuid.UUID]:
        if folder.name == "goes":
            shutil.rmtree(folder)
        return load_config(folder)

    for name in ("goes", "stays"):
        new = TeachConfig(env_id="Pendulum-v1", predictor="rl", name=name, runs_dir=str(tmp_path))
        new.run_dir.mkdir(parents=True)
        save_config(new, uuid.uuid4())
    monkeypatch.setattr("teacher.cli.ls.load_config", load_what_goes)
    assert main(["ls", str(tmp_path)]) == 0
    assert [line.split()[0].rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == [
        "run",
        "stays",
    ]


def test_no_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("teach ls: there are no runs in the folder")
    assert said.count("\n") == 1

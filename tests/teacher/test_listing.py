"""The list of runs says how far each came, and changes none."""

import fcntl
import shutil
import uuid
from pathlib import Path

import pytest

from teacher.assembly import open_run
from teacher.cli.ls import summarise
from teacher.config import TeachConfig, load_config, save_config
from teacher.loop import train
from teacher.teach import main


def config(runs: Path, name: str, **settings: object) -> TeachConfig:
    return TeachConfig(env_id="ShortReacher-v1", name=name, runs_dir=str(runs), no_videos=True, **settings)  # type: ignore[arg-type]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """One that is done, one that was stopped, and one that never began."""
    for name, steps in (("done", 256), ("stopped", 10**6)):
        settings = {"num_timesteps": steps, "n_labels": 8, "predictor": "synth", "pretrain_iters": 10}
        with open_run(config(tmp_path, name, **settings)) as run:
            if name == "done":
                train(run)
    new = config(tmp_path, "new", predictor="rl")
    new.run_dir.mkdir()
    save_config(new, uuid.uuid4())
    return tmp_path


def test_runs_are_listed_with_how_far_they_came(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(runs)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["run", "rewards", "steps", "labels", "return", "saved", "state"]
    rows = {line.split()[0].rpartition("/")[2]: line.split() for line in said[1:]}
    assert list(rows) == ["new", "done", "stopped"]
    done = summarise(runs / "ShortReacher-v1" / "done")
    assert done.steps >= 256
    assert done.last_return is not None
    assert -60 < done.last_return < 0  # 20 steps of a distance
    assert rows["done"][1:5] == [
        "synth",
        f"{done.steps / 1000:.3g}k/256",
        "8/8",
        f"{done.last_return:.1f}",
    ]
    assert [row[-1] for row in rows.values()] == ["new", "done", "stopped"]
    assert rows["new"][1:3] == ["rl", "0/5M"]


def test_a_run_that_is_held_is_running_and_can_still_begin(runs: Path) -> None:
    folder = runs / "ShortReacher-v1" / "stopped"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert summarise(folder).state == "running"
    assert summarise(folder).state == "stopped"
    with open_run(folder):
        pass


def test_a_damaged_run_does_not_hide_the_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "ShortReacher-v1" / "done" / "checkpoint.npz").write_bytes(b"PK")
    assert main(["ls", str(runs)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[-1].startswith("damaged: ")
    assert "not a readable checkpoint" in said[-1]


def test_a_run_that_came_to_nothing_while_it_was_looked_at_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_what_goes(folder: Path) -> tuple[TeachConfig, uuid.UUID]:
        if folder.name == "goes":
            shutil.rmtree(folder)
        return load_config(folder)

    for name in ("goes", "stays"):
        new = config(tmp_path, name, predictor="rl")
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
    assert said.startswith("teach ls: expected runs in the folder")
    assert said.count("\n") == 1

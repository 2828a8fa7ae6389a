"""Looking at a run changes neither its folder nor what its experiment tracker has of it."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agents import SACConfig
from teacher.data.preferences import PreferenceDataset
from teacher.errors import ConfigError
from teacher.queries.kinds import preferences_in
from teacher.reporting import trackers
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.settings.options import RewardConfig
from teacher.teach import main
from teacher.training.builder import open_run
from teacher.training.loop import train
from teacher.training.warmstart import read_policy

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> Path:
    """A run that is done; one that keeps replay files and was stopped; and the same, killed as it trained."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(finished_run.parents[1], folder / "done")
    config = TeachConfig(
        env_id="Pendulum-v1",
        predictor="synth",
        name="x",
        agent=SACConfig(learning_starts=10, hidden_sizes=(8,), batch_size=8),
        n_labels=8,
        num_timesteps=2_000,
        pretrain_iters=10,
        no_videos=True,
        reward=RewardConfig(hidden=4),
        runs_dir=str(folder / "stopped"),
    )

    def stop(_: object) -> None:
        run.save()
        shutil.copytree(folder / "stopped", folder / "killed")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_run(config, QUIET) as run:
        train(run, stop)
    return folder


def copied(runs: Path, folder: Path) -> Path:
    """Copy a folder of one run to ``folder / "runs"``, and return the run's folder."""
    shutil.copytree(runs, folder / "runs")
    return next((folder / "runs").glob("*/*"))


def contents(folder: Path) -> dict[str, Any]:
    """All that a folder has, and when each file and folder in it was changed."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def look(run_dir: Path) -> None:
    with open_run(run_dir, QUIET) as run, open_run(str(run_dir), QUIET) as other:
        assert run.teaching is not None
        assert other.teaching is not None
        assert run.step == other.step > 0
        assert run.agent.act(np.zeros((1, 3)), deterministic=True).shape == (1, 1)
        assert len(run.teaching.dataset) == run.teaching.ledger.usable() == other.teaching.ledger.usable() > 0
        preference = next(preferences_in(run.teaching.ledger))
        assert np.isfinite(other.teaching.predictor.segment_returns([preference.first]))


def read(run_dir: Path) -> None:
    run = SavedRun(run_dir)
    run.load_agent()
    run.load_predictor()
    assert isinstance(run.load_preferences(), PreferenceDataset)


LOOKS: dict[str, Callable[[Path], object]] = {
    "open_run": look,
    "SavedRun": read,
    "ls": lambda run: main(["ls", str(run.parents[1])]),
    "play": lambda run: main(["play", str(run), "--episodes", "1", "--steps", "3"]),
    "export": lambda run: main(
        f"export {run} labels.npz --predictor reward.npz --sb3 policy.zip --huggingface hub".split()
    ),
    "doctor": lambda run: main(["doctor", "--runs_dir", str(run.parents[1])]),
    "--policy": lambda run: not read_policy(run),
}


@pytest.mark.parametrize("name", ["done", "stopped", "killed"])
def test_looking_changes_nothing(
    runs: Path,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("teacher.cli.doctor.examine", lambda _: ())
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda _: pytest.fail("it was tracked"))
    run = copied(runs / name, tmp_path)
    config, run_id = load_config(run)
    save_config(replace(config, track="wandb"), run_id)
    before = contents(run)
    for what, look_at in LOOKS.items():
        assert not look_at(run), (what, capsys.readouterr())
        assert contents(run) == before, what


def test_a_run_is_looked_at_while_another_process_trains_it(runs: Path, tmp_path: Path) -> None:
    run_dir = copied(runs / "done", tmp_path)
    with open_run(run_dir, QUIET) as training:
        training.begin()
        look(run_dir)
        with pytest.raises(ConfigError, match="is in use by another teach process"), open_run(run_dir) as run:
            train(run)


def test_a_run_that_was_looked_at_trains_on_from_where_it_is(runs: Path, tmp_path: Path) -> None:
    run_dir = copied(runs / "stopped", tmp_path)
    with open_run(run_dir, QUIET) as early:
        with open_run(run_dir, QUIET) as run:
            run.collect()
        with pytest.raises(ConfigError, match="has been trained since it was opened; open it again"):
            train(early)
    with open_run(run_dir, QUIET) as later:
        assert later.step == run.step > early.step


def test_looking_needs_no_site(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the token of the one where people gave the labels."""
    monkeypatch.delenv("TEACHER_TOKEN", raising=False)
    run_dir = copied(runs / "done", tmp_path)
    settings = json.loads((run_dir / "config.json").read_text())
    settings |= {"predictor": "human", "site_url": "https://nowhere.invalid", "storage": "s3://nowhere/clips"}
    (run_dir / "config.json").write_text(json.dumps(settings))
    with open_run(run_dir, QUIET) as run:
        assert run.teaching is not None
        assert len(run.teaching.dataset) == 12
        with pytest.raises(ConfigError, match="TEACHER_TOKEN"):
            train(run)

"""The labels of a run leave it as they are."""

import contextlib
import uuid
from pathlib import Path

import numpy as np
import pytest

from teacher.assembly import LEDGER_NAME
from teacher.collectors.synthetic import SyntheticTeacher
from teacher.config import TeachConfig, save_config
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.export import main
from teacher.ledger import Ledger
from teacher.preference_files import load_preferences
from teacher.segments import SegmentPool


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run with 12 synthetic labels."""
    config = TeachConfig(
        env_id="ShortReacher-v1", predictor="synth", name="a", n_labels=12, runs_dir=str(tmp_path)
    )
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    pool = SegmentPool(10, seed=1)
    for trajectory in random_trajectories(describe_task(config.env_id), seed=1):
        pool.extend([trajectory])
        if len(pool) == 24:
            break
    with contextlib.closing(Ledger(config.run_dir / LEDGER_NAME)) as ledger:
        SyntheticTeacher(ledger, seed=1).submit(pool.sample_pairs(12), "training", 0)
    return config.run_dir


def test_an_export_holds_what_the_ledger_does(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "labels.npz"
    assert main([str(run_dir), str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 12 preferences\n"
    task = describe_task("ShortReacher-v1")
    dataset = load_preferences(
        path,
        env_id="ShortReacher-v1",
        observation_space=task.observation_space,
        action_space=task.action_space,
    )
    with contextlib.closing(Ledger(run_dir / LEDGER_NAME)) as ledger:
        held = ledger.preferences()
    assert dataset.values.tolist() == [preference.value for preference in held]
    for row, preference in enumerate(held):
        assert preference.uuid in dataset
        for index, segment in enumerate((preference.first, preference.second)):
            np.testing.assert_array_equal(
                dataset.steps().next_observations[row, index], segment.next_observations.astype(np.float32)
            )
            np.testing.assert_array_equal(dataset.actions[row, index], segment.actions)


def test_what_cannot_be_exported_is_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), str(tmp_path / "labels.npz")]) == 2
    assert main([str(run_dir), str(tmp_path / "labels.csv")]) == 2
    (run_dir / LEDGER_NAME).unlink()
    assert main([str(run_dir), str(tmp_path / "labels.npz")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in errors] == ["export"] * 3
    assert "expected a run with -p synth or -p human" in errors[2]
    assert not list(tmp_path.glob("labels*"))

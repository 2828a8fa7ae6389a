"""A name that is free when a command begins, and taken by somebody else when it comes to write."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from teacher.data.demonstrations import Demonstrations, save_demonstrations
from teacher.datasets.cards import check_folder
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.envs.random_episodes import random_trajectories
from teacher.files import require_new
from teacher.reward.predictor import RewardPredictor
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.teach import main
from teacher.training.builder import open_run

IMITATION = Path(__file__).parents[1] / "datasets" / "trajectories" / "data" / "imitation"
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(2)  # of what is there
THEIRS = "theirs"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the commands' inputs: a saved run with four labels, a predictor, labels, demonstrations."""
    folder = tmp_path_factory.mktemp("material")
    config = TeachConfig(
        env_id="Pendulum-v1", predictor="synth", name="a", n_labels=4, runs_dir=str(folder / "runs"),
        no_videos=True, reward=RewardConfig(hidden=4),
    )  # fmt: skip
    with open_run(config) as run:
        assert run.teaching is not None
        run.teaching.pool.extend(islice(random_trajectories(run.task, seed=1), 2))
        run.teaching.collector.submit(run.teaching.pool.sample_pairs(4), "training", 0)
    saved = SavedRun(config.run_dir)
    task = saved.task
    save_preferences(
        folder / "labels.npz", saved.load_preferences(), task.observation_space, task.action_space
    )
    predictor = RewardPredictor(*SPACES, RewardConfig(hidden=4, members=1), seed=1)
    save_predictor(folder / "predictor.npz", predictor, *SPACES)
    states = np.zeros((3, 4))
    shown = Demonstrations(
        states, np.zeros((3, 1), np.int64), np.ones(3), np.full(1, 3.0), np.arange(3) == 0, states[:1],
        np.array([False]),
    )  # fmt: skip
    save_demonstrations(folder / "shown.npz", shown)
    return folder


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("fit labels.npz new.npz --max_updates 1", "teacher.cli.fit"),
        ("export runs/Pendulum-v1/a new.npz", "teacher.runs.export"),
        ("export runs/Pendulum-v1/a new.parquet", "teacher.runs.export"),
        ("export runs/Pendulum-v1/a --predictor new.npz", "teacher.cli.export"),
        ("record runs/Pendulum-v1/a new.npz --episodes 1", "teacher.cli.record"),
        (f"import {IMITATION} new.npz", "teacher.cli.import_files"),
        ("relabel predictor.npz shown.npz new.npz", "teacher.datasets.trajectories.files"),
        (f"relabel predictor.npz {IMITATION} new", "teacher.datasets.trajectories.files"),
    ],
    ids=lambda value: value if value.startswith("teacher.") else value.split()[0],
)
def test_no_command_writes_over_it(
    line: str,
    module: str,
    material: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = line.split()
    name = next(word for word in words if word.startswith("new"))

    def look(path: Path) -> None:
        require_new(path)
        path.write_text(THEIRS)

    monkeypatch.chdir(material)
    monkeypatch.setattr(f"{module}.require_new", look)
    try:
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said == f"teach {words[0]}: {name} already exists; choose another name or remove it\n"
        assert (material / name).read_text() == THEIRS
        assert list(material.glob(".*")) == []
    finally:
        (material / name).unlink()


@pytest.mark.parametrize("name", ["train.parquet", "README.md"])
def test_an_export_into_a_new_folder_writes_over_no_file_in_it(
    name: str,
    material: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "dataset"

    def look(folder: Path, *arguments: str) -> bool:
        is_new = check_folder(folder, *arguments)
        (folder / name).write_text(THEIRS)
        return is_new

    monkeypatch.setattr("teacher.runs.export.check_folder", look)
    assert main(["export", str(material / "runs" / "Pendulum-v1" / "a"), str(folder)]) == 2
    assert f"{name} already exists; choose another name or remove it" in capsys.readouterr().err
    assert (folder / name).read_text() == THEIRS

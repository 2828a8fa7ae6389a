"""Files and folders are named by strings as by paths."""

import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher.data.demonstrations import Demonstrations, draw_returns, load_demonstrations, save_demonstrations
from teacher.data.segment_pool import SegmentPool
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.datasets.preference_files import load_preferences, save_preferences, saved_spaces
from teacher.datasets.trajectories import load_trajectories, relabel
from teacher.datasets.unirlhf import is_crowd_labels, load_crowd_labels
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.errors import ConfigError, DataError
from teacher.queries.judges import oracle
from teacher.queries.offline import ask
from teacher.reward.predictor import RewardPredictor
from teacher.runs.export import export_preferences
from teacher.runs.play import RewardTrace, draw_rewards, film_rewards
from teacher.runs.saved_run import SavedRun
from teacher.settings.options import RewardConfig
from teacher.teach import parse_arguments
from teacher.training.builder import open_run

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,), np.float32)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["labels.npz", "labels.parquet"])
def test_preferences(name: str) -> None:
    task = describe_task("Pendulum-v1")
    pool = SegmentPool(length=5, seed=1)
    pool.extend(islice(random_trajectories(task, 1), 2))
    save_preferences(name, ask(pool, oracle, 4), task.observation_space, task.action_space)
    assert len(load_preferences(name)) == 4
    assert [space.shape for space in saved_spaces(name)] == [(3,), (1,)]
    with pytest.raises(DataError, match=r"^no\.npz does not exist"):
        load_preferences("no.npz")


def test_predictors() -> None:
    save_predictor("reward.npz", RewardPredictor(*SPACES, RewardConfig(), seed=1), *SPACES)
    assert load_predictor("reward.npz").observation_space.shape == (3,)
    with pytest.raises(DataError, match=r"^no\.npz is not a readable predictor: No such file"):
        load_predictor("no.npz")


@pytest.mark.parametrize("shape", [(3,), (8, 8, 3)])
def test_demonstrations(shape: tuple[int, ...]) -> None:
    obs = np.zeros((4, *shape), np.uint8 if len(shape) > 1 else np.float32)
    shown = Demonstrations(obs, np.zeros((4, 2)), np.ones(4), np.full(1, 4.0), np.arange(4) == 0, obs[:1])
    save_demonstrations("expert.npz", shown)
    assert load_demonstrations("expert.npz").obs.tolist() == obs.tolist()
    draw_returns(shown, "returns.png")
    assert Path("returns.png").read_bytes().startswith(b"\x89PNG")


def test_trajectories() -> None:
    predictor = RewardPredictor(*SPACES, RewardConfig(), seed=1)
    obs = np.zeros((4, 3), np.float32)
    columns = obs, np.zeros((4, 2)), np.ones(4), np.full(1, 4.0), np.arange(4) == 0, obs[:1]
    save_demonstrations("expert.npz", Demonstrations(*columns))
    relabel(predictor, "expert.npz", "taught.npz")
    assert len(load_trajectories("taught.npz").episodes[0]) == 4
    with pytest.raises(ConfigError, match=r"^taught\.npz already exists"):
        relabel(predictor, "expert.npz", "taught.npz")
    assert not is_crowd_labels("nowhere")
    with pytest.raises(DataError, match=r"nowhere must contain exactly one file .*, not 0"):
        load_crowd_labels("nowhere")


def test_pictures_of_rewards() -> None:
    trace = RewardTrace(np.arange(4.0), np.stack([np.arange(4.0)] * 2), None, fps=10)
    frames = [np.zeros((32, 32, 3), np.uint8)] * 4
    draw_rewards("rewards.png", trace, frames)
    film_rewards("rewards.mp4", trace, frames)
    assert Path("rewards.png").stat().st_size > 0
    assert Path("rewards.mp4").stat().st_size > 0


def test_runs(finished_run: Path) -> None:
    run_dir = str(shutil.copytree(finished_run, "runs/Pendulum-v1/done"))
    with open_run(run_dir) as run:
        assert run.config.name == "done"
    assert SavedRun(run_dir).config.name == "done"  # type: ignore[arg-type]
    checkpoint = f"{run_dir}/checkpoint.npz"
    assert parse_arguments(["--resume", checkpoint]).config.name == "done"
    with pytest.raises(ConfigError, match=f"^{checkpoint} is a file; pass its run's folder, {run_dir}$"):
        SavedRun(checkpoint).config  # type: ignore[arg-type]  # noqa: B018
    assert export_preferences(run_dir, "labels.npz") == 12

"""A run trains with its task's defaults, reports success, and finds names that were taken meanwhile."""

import dataclasses
import uuid
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.defaults import BY_NAME
from agents.on_policy import OnPolicyConfig
from agents.ppo import PPOConfig
from teacher.behaviors import counter_clockwise
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.data.demonstrations import Demonstrations, save_demonstrations
from teacher.datasets.cards import check_folder
from teacher.datasets.predictor_files import save_predictor
from teacher.datasets.preference_files import save_preferences
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import BehaviorError, ConfigError
from teacher.files import require_new
from teacher.queries.kinds import preferences_in
from teacher.reward.predictor import RewardPredictor
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.options import RewardConfig
from teacher.settings.presets import from_options
from teacher.teach import main
from teacher.training.builder import build_run, open_run, prepared_directory
from teacher.training.loop import Round, train
from teacher.training.parts import RunPlan, task_of
from teacher.training.start import check
from tests.environments import Stub
from tests.teacher.conftest import config_in

QUIET = Console(quiet=True)
CARTPOLE = replace(BY_NAME["CartPole"].ppo, normalize_rewards=True, anneal_timesteps=9000)
HALF_CHEETAH = BY_NAME["HalfCheetah"].trpo


@pytest.mark.parametrize(
    ("settings", "num_envs", "expected"),
    [
        ({"env_id": "ShortHopper-v1"}, 8, PPOConfig(normalize_rewards=True)),
        ({"env_id": "ShortHopper-v1", "predictor": "synth", "n_labels": 60}, 8, PPOConfig()),
        ({"env_id": "CartPole-v1"}, 8, CARTPOLE),
        ({"env_id": "ShortReacher-v1", "predictor": "synth", "n_labels": 60}, 8, BY_NAME["Reacher"].ppo),
        ({"env_id": "Pendulum-v1", "predictor": "synth", "n_labels": 60}, 4, BY_NAME["Pendulum"].ppo),
        (
            {"env_id": "HalfCheetah-v5", "predictor": "synth", "n_labels": 60, "agent": "trpo"},
            8,
            replace(HALF_CHEETAH, target_kl=6 * 0.04, cg_damping=6 * 0.1),
        ),
        (
            {"env_id": "HalfCheetah-v5", "predictor": "synth", "n_labels": 60, "preset": "paper"},
            8,
            replace(HALF_CHEETAH, target_kl=6 * 0.04, cg_damping=6 * 0.1, ent_coef=0.01),
        ),
        ({"env_id": "CartPole-v1", "ent_coef": 0.3}, 8, replace(CARTPOLE, ent_coef=0.3)),
    ],
)
def test_a_run_trains_with_the_defaults_of_its_task(
    settings: dict[str, Any], num_envs: int, expected: OnPolicyConfig, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"predictor": "rl", "name": "x", "num_timesteps": 9000, "no_videos": True}
    config = from_options({**common, "runs_dir": str(tmp_path), **settings})
    plan = RunPlan(RunSettings(config, uuid.uuid4()), task_of(config))
    with prepared_directory(plan.settings), build_run(plan, QUIET) as run:
        assert run.envs.num_envs == num_envs
        assert run.agent.config == expected


@pytest.mark.usefixtures("short_rollouts")
def test_reports_compare_with_what_a_function_says_is_wanted(tmp_path: Path) -> None:
    config = config_in(
        tmp_path,
        "teacher/ShortReacher-v1",
        teacher="teacher.behaviors:counter_clockwise",
        num_timesteps=500,
        segment_steps=5,
        pretrain_iters=100,
    )
    plan, reported = check(RunSettings(config, uuid.uuid4()), QUIET), dict[str, float]()
    with prepared_directory(plan.settings), build_run(plan, QUIET) as run:
        assert run.teaching is not None
        run.teaching.collector.report = lambda values, *_: reported.update(values)  # type: ignore[method-assign]
        train(run)
        wanted = [counter_clockwise(episode) for episode in run.episodes]
        for preference in preferences_in(run.teaching.ledger):
            turned = counter_clockwise(preference.first) - counter_clockwise(preference.second)
            assert preference.value == float(turned > 0)
    assert reported["agent/behaviour_per_episode"] == pytest.approx(np.mean(wanted))
    assert reported["predictor/rank_correlation"] > 0.5


def test_large_episodes_are_counted_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_in(tmp_path, "teacher/MovingDot-v1", predictor="rl", n_labels=None)
    episodes = list(islice(random_trajectories(describe_task(config.env_id), seed=1), 8))
    monkeypatch.setattr("teacher.reporting.statistics.EPISODE_BYTES", 3 * episodes[0].nbytes + 1)
    with open_run(config, QUIET) as run:
        run.remember(episodes)
        assert list(run.episodes) == episodes[-3:]
        assert run.statistics.mean("length") == 40
        values = run.report({}, {})
    returns = [episode.true_return for episode in episodes]
    assert values["agent/true_reward_per_episode"] == pytest.approx(np.mean(returns))


def test_a_function_is_tried_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short_wishes.py").write_text("def first_half(steps): return steps.observations[100, 0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = TeachConfig(
        env_id="ShortHopper-v1", predictor="synth", teacher="short_wishes:first_half", name="x", n_labels=40
    )
    with pytest.raises(BehaviorError, match="short_wishes:first_half failed: IndexError"):
        check(RunSettings(config, uuid.uuid4()), QUIET)


def test_a_run_opened_from_python_is_saved_and_opened_again(tmp_path: Path) -> None:
    config = config_in(tmp_path, "CartPole-v1", predictor="rl", num_timesteps=200, n_labels=None)
    with open_run(config, QUIET) as run:
        train(run)
        made = run.agent.total_steps
    with open_run(config.run_dir, QUIET) as run:
        assert run.agent.total_steps == made >= 200
    with pytest.raises(ConfigError, match="exists; continue it with teach --resume"), open_run(config, QUIET):
        pass


def test_a_run_that_has_gone_before_it_was_held_is_not_resumed(tmp_path: Path) -> None:
    """Another process may have begun it, and removed its folder when it came to nothing."""
    config = TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x", runs_dir=str(tmp_path / "runs"))
    with (
        pytest.raises(ConfigError, match=r"config\.json does not exist"),
        prepared_directory(RunSettings(config, uuid.uuid4(), resumed=True)),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_trained_outlives_an_error_before_its_first_half_minute(tmp_path: Path) -> None:
    def stop(_: Round) -> None:
        raise ZeroDivisionError

    config = config_in(tmp_path, "CartPole-v1", predictor="rl", n_labels=None)
    with pytest.raises(ZeroDivisionError), open_run(config, QUIET) as run:
        train(run, stop)
    assert load_state(config.run_dir / CHECKPOINT_NAME)["agent"]["total_steps"] == run.agent.total_steps > 0


class Silent(Stub):
    """Its task is solved in the third step of every third episode, and every fifth episode ends early."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space: Any = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, **arguments: Any) -> None:
        self.render_mode = arguments.get("render_mode")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._seed = seed or 0
        return super().reset(seed=seed)[0], {"success": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *_ = super().step(action)
        info = {"success": float(self.time == 3 and self._seed % 3 == 0)}
        return observation, 0.0, self.time == 5 and self._seed % 5 == 0, False, info

    def render(self) -> NDArray[np.uint8]:
        return np.zeros((8, 8, 3), np.uint8)


class Reporting(Silent):
    """Reports what the other keeps to itself."""

    reports_success = True


gym.register("Silent-v0", Silent, max_episode_steps=9)
gym.register("Reporting-v0", Reporting, max_episode_steps=9)
REPORTING = describe_task("Reporting-v0")
CAPTURED = dataclasses.replace(REPORTING, captures=True)


def recorded(task: TaskInfo, workers: int = 1) -> list[Trajectory]:
    envs = make_vector_env(task, 3, seed=1, workers=workers)
    envs.reset()
    for _ in range(200):
        envs.step(np.zeros((3, 1), np.float32))
    envs.close()
    return envs.drain()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("task", [REPORTING, CAPTURED])
def test_an_episode_succeeds_with_any_of_its_steps(task: TaskInfo, workers: int) -> None:
    episodes = recorded(task, workers)
    finished = [episode for episode in episodes if episode.finished]
    assert 60 < len(finished) < len(episodes)
    assert [episode.succeeded for episode in finished] == [episode.seed % 3 == 0 for episode in finished]
    assert {(episode.succeeded, episode.terminated) for episode in finished} == {
        *((True, True), (True, False), (False, True), (False, False))
    }
    assert {episode.succeeded for episode in episodes if not episode.finished} == {None}


def test_an_environment_must_declare_that_it_reports_success() -> None:
    task = describe_task("Silent-v0")
    assert not task.reports_success
    assert {episode.succeeded for episode in recorded(task)} == {None}


def reported(env_id: str, folder: Path, episodes: int = 8) -> tuple[dict[str, float], list[float]]:
    """Return a run's metrics after some random episodes, and the success rates in its TensorBoard file."""
    config = TeachConfig(env_id=env_id, predictor="rl", name="x", no_videos=True, runs_dir=str(folder))
    with open_run(config, Console(quiet=True)) as run:
        run.remember(list(islice(random_trajectories(run.task, seed=1), episodes)))
        values = run.report({}, {})
    scalars = EventAccumulator(str(run.config.run_dir / "tensorboard")).Reload()
    shown = "agent/success_rate" in scalars.Tags()["scalars"]
    return values, [event.value for event in scalars.Scalars("agent/success_rate")] if shown else []


def test_a_run_reports_the_share_of_successful_episodes(tmp_path: Path) -> None:
    values, rates = reported("Reporting-v0", tmp_path)
    seeds = [episode.seed for episode in islice(random_trajectories(REPORTING, seed=1), 8)]
    share = np.mean([seed % 3 == 0 for seed in seeds])
    assert 0 < share < 1
    assert values["agent/success_rate"] == share
    assert rates == pytest.approx([share])


def test_before_the_first_episode_has_ended_the_rate_is_unknown(tmp_path: Path) -> None:
    values, rates = reported("Reporting-v0", tmp_path, episodes=0)
    assert np.isnan(values["agent/success_rate"])
    assert rates == []


def test_a_run_whose_environment_reports_no_success_shows_no_rate(tmp_path: Path) -> None:
    values, rates = reported("Silent-v0", tmp_path)
    assert "agent/success_rate" not in values
    assert rates == []


IMITATION = Path(__file__).parents[1] / "datasets" / "trajectories" / "data" / "imitation"
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(2)  # of what is there
THEIRS = "theirs"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the commands' inputs: a saved run with four labels, a predictor, labels, demonstrations."""
    folder = tmp_path_factory.mktemp("material")
    config = config_in(folder / "runs", "Pendulum-v1", name="a", n_labels=4, reward=RewardConfig(hidden=4))
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

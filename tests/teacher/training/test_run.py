"""A run trains with the defaults of its task."""

import uuid
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agents.defaults import BY_NAME
from agents.on_policy import OnPolicyConfig
from agents.ppo import PPOConfig
from teacher.behaviors import counter_clockwise
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.errors import BehaviorError, ConfigError
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.presets import from_options
from teacher.training.builder import build_run, open_run, prepared_directory
from teacher.training.loop import Round, train
from teacher.training.parts import RunPlan, task_of
from teacher.training.start import check

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
    config = TeachConfig(
        env_id="teacher/ShortReacher-v1",
        predictor="synth",
        teacher="teacher.behaviors:counter_clockwise",
        name="x",
        n_labels=40,
        num_timesteps=500,
        segment_steps=5,
        pretrain_iters=100,
        no_videos=True,
        runs_dir=str(tmp_path),
    )
    plan, reported = check(RunSettings(config, uuid.uuid4()), QUIET), dict[str, float]()
    with prepared_directory(plan.settings), build_run(plan, QUIET) as run:
        assert run.teaching is not None
        run.teaching.collector.report = lambda values, *_: reported.update(values)  # type: ignore[method-assign]
        train(run)
        wanted = [counter_clockwise(episode) for episode in run.episodes]
        for preference in run.teaching.ledger.preferences():
            turned = counter_clockwise(preference.first) - counter_clockwise(preference.second)
            assert preference.value == float(turned > 0)
    assert reported["agent/behaviour_per_episode"] == pytest.approx(np.mean(wanted))
    assert reported["predictor/rank_correlation"] > 0.5


def test_large_episodes_are_counted_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TeachConfig(
        env_id="teacher/MovingDot-v1", predictor="rl", name="x", no_videos=True, runs_dir=str(tmp_path)
    )
    episodes = list(islice(random_trajectories(describe_task(config.env_id), seed=1), 8))
    monkeypatch.setattr("teacher.reporting.statistics.EPISODE_BYTES", 3 * episodes[0].nbytes + 1)
    with open_run(config, QUIET) as run:
        run.remember(episodes)
        assert list(run.episodes) == episodes[-3:]
        assert run.statistics.length == 40
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
    config = TeachConfig(
        env_id="CartPole-v1",
        predictor="rl",
        name="x",
        num_timesteps=200,
        no_videos=True,
        runs_dir=str(tmp_path),
    )
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

    config = TeachConfig(
        env_id="CartPole-v1", predictor="rl", name="x", no_videos=True, runs_dir=str(tmp_path)
    )
    with pytest.raises(ZeroDivisionError), open_run(config, QUIET) as run:
        train(run, stop)
    assert load_state(config.run_dir / CHECKPOINT_NAME)["agent"]["total_steps"] == run.agent.total_steps > 0

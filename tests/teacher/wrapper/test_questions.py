"""Test how many answers come in all: as many as were wanted, whatever segments come."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from teacher.data.decisions import Decision
from teacher.data.segments import Segment
from teacher.datasets.preference_files import load_preferences
from teacher.errors import BackgroundError, BehaviorError
from teacher.queries.schedules import ConstantRate, ExponentialSchedule
from teacher.wrapper import trainer
from tests.teacher.wrapper.conftest import SMALL, Line, Wrap, WrapVector, play

PLAIN = replace(SMALL, features="plain")  # the first fit is over sooner
FEW = "too few new segments"
COLLECT: dict[str, Any] = {"train_reward": False, "n_initial_prefs": 10, "n_prefs": 100}


@pytest.mark.parametrize(
    "settings",
    [
        {**COLLECT, "segment_length": 10},
        {"n_prefs": 50, "n_initial_prefs": 30, "total_timesteps": 300, "reward": PLAIN},
    ],
)
def test_last_step_asks_all(wrap: Wrap, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]) -> None:
    env = wrap(**settings)
    config = env.trainer.config
    assert config.total_timesteps is not None
    assert config.n_prefs is not None
    play(env, config.total_timesteps - 1)
    assert env.trainer.answers < config.n_prefs // 2
    play(env, 1)
    assert env.trainer.answers == config.n_prefs
    assert env.using_reward_from_predictor == config.train_reward
    play(env, 60)
    assert env.trainer.answers == config.n_prefs
    assert caplog.text.count(FEW) == 1
    assert (
        "100 labels will be due by step 600 and need two segments each, but there will be only 5"
        in caplog.text
        or "train_reward" not in settings
    )


def test_nothing_is_warned_of_where_segments_suffice(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    env = wrap(**{**COLLECT, "n_prefs": 30})
    play(env, 600)
    assert env.trainer.answers == 30
    assert FEW not in caplog.text


def test_a_schedule_with_an_end_is_kept_to_as_well(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    schedule = ExponentialSchedule(10, 90, 300)
    env = wrap(**{**COLLECT, "n_prefs": None}, total_timesteps=None, schedule=schedule)
    play(env, 300)
    assert env.trainer.answers == 90
    assert FEW in caplog.text


def test_a_schedule_without_an_end_asks_about_new_segments_alone(wrap: Wrap) -> None:
    env = wrap(**{**COLLECT, "n_prefs": None}, total_timesteps=None, schedule=ConstantRate(50, 1e6))
    play(env, 200)
    assert 0 < env.trainer.answers <= 200 // 5 // 2


def test_vector_environments_step_over_the_last_step(wrap_vector: WrapVector) -> None:
    envs = wrap_vector(gym.vector.SyncVectorEnv([Line] * 7), **COLLECT, total_timesteps=300)
    envs.reset(seed=1)
    while envs.trainer.steps < 300:
        envs.step(envs.action_space.sample())
    assert envs.trainer.answers == 100


def test_saved_labels_are_complete(wrap: Wrap) -> None:
    env = wrap(**COLLECT, background=True)
    play(env, 600)
    assert len(load_preferences(env.save_prefs())) == 100


def test_closed_wrapper_is_complete(wrap: Wrap) -> None:
    endless = {"n_initial_training_steps": 10**9, "validation_interval": 10**9}
    env = wrap(n_prefs=60, n_initial_prefs=6, background=True, **endless)
    env.reset(seed=1)
    while env.trainer.answers < 6:
        play(env, 20)
    play(env, 600)
    env.close()
    env = wrap(collect_prefs=False, train_reward=False, n_prefs=60)
    assert env.trainer.answers == 60


def test_saving_does_not_wait_for_ever(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainer, "_LAST_ANSWERS_SECONDS", 0.1)
    endless = {"n_initial_training_steps": 10**9, "validation_interval": 10**9}
    env = wrap(n_prefs=60, n_initial_prefs=6, background=True, **endless)
    play(env, 200)
    while env.trainer.answers < 6:
        time.sleep(0.01)
    play(env, 600)
    assert 6 <= len(load_preferences(env.save_prefs())) < 60
    assert "saving without the last labels" in caplog.text


@pytest.mark.parametrize(
    ("background", "steps", "error"),
    [(True, 600, BackgroundError), (False, 600, BehaviorError), (False, 60, BehaviorError)],
)
def test_a_judge_that_fails_loses_no_answer_and_holds_nobody_up(
    wrap: Wrap, tmp_path: Path, background: bool, steps: int, error: type[Exception]
) -> None:
    """In the thread, in a batch of the run, and in the last one, which asks for all that is missing."""
    told = 0

    def fails_late(first: Segment, second: Segment) -> Decision:
        nonlocal told
        told += 1
        if told > 13:
            raise KeyError("enough")
        return "first"

    env = wrap(**COLLECT, total_timesteps=steps, background=background, judge=fails_late)
    with pytest.raises(error, match="fails_late failed"):
        play(env, 10**6)
    assert len(load_preferences(env.save_prefs())) == 13
    with pytest.raises(BackgroundError, match="fails_late failed") if background else nullcontext():
        env.close()
    env = wrap(log_dir=tmp_path / "logs", collect_prefs=False, train_reward=False)  # the folder is free
    assert env.trainer.answers == 13


def test_unused_labels_are_reported(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    env = wrap(**COLLECT, max_pref_interface_segs=4)
    play(env, 600)
    assert (
        "of 100 labels are missing at the end: the teacher can't tell apart the two segments of any "
        "remaining pair among the last 4" in caplog.text
    )
    assert env.trainer.answers < 100

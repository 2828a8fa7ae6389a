"""The moving dot: what it shows and rewards, and a short run on its pictures."""

from pathlib import Path

import numpy as np
import pytest

from teacher.data.checkpoint import load_state
from teacher.datasets.preference_files import load_preferences
from teacher.envs.dot import MovingDot
from teacher.envs.tasks import describe_task
from teacher.runs.export import export_preferences
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.training.builder import open_run
from teacher.training.loop import Round, train


def test_it_moves_as_it_is_told_and_is_rewarded_for_the_middle() -> None:
    env = MovingDot(render_mode="rgb_array")
    env.reset(seed=3)
    env._corner = np.array([19, 19])
    assert env.step(np.int64(0))[1] == 1.0
    for action, shift in enumerate([(0, 0), (-4, 0), (4, 0), (0, -4), (0, 4)]):
        env._corner = np.array([12, 20])
        picture, reward, terminated, truncated, _ = env.step(np.int64(action))
        top, left = 12 + shift[0], 20 + shift[1]
        assert (picture[top : top + 6, left : left + 6] == 255).all()
        assert (picture == 255).sum() == 36
        assert reward == pytest.approx(1 - np.hypot(top - 19, left - 19) / np.hypot(19, 19))
        assert not terminated
        assert not truncated
        np.testing.assert_array_equal(env.render(), picture.repeat(3, axis=2))
    for _ in range(20):
        env.step(np.int64(1))
        last = env.step(np.int64(3))
    assert last[1] == 0.0, "in the corner"


def test_a_run_learns_from_pictures_and_goes_on(tmp_path: Path) -> None:
    """Pictures stay bytes in segments, ledger, dataset and files."""
    config = TeachConfig(
        env_id="teacher/MovingDot-v1",
        predictor="synth",
        name="dot",
        runs_dir=str(tmp_path),
        n_labels=24,
        segment_steps=4,
        num_timesteps=1_000,
        no_videos=True,
        pretrain_iters=4,
        reward=RewardConfig(members=2, stride=1, epochs=1, image_dropout=0.1),
    )
    rounds: list[Round] = []
    with open_run(config) as run:
        assert run.task.never_terminates
        assert run.agent.config.rollout_steps == 64, "its own row"
        train(run, rounds.append)
        assert run.teaching is not None
        assert run.teaching.pool.segments[0].observations.dtype == np.uint8
        assert run.teaching.dataset.observations.dtype == np.uint8
        assert len(run.teaching.dataset) == 24
    assert len(rounds) == 2
    assert np.isfinite(rounds[-1].values["predictor/loss"])
    with open_run(config.run_dir) as run:
        assert run.agent.total_steps == rounds[-1].step
        assert run.teaching is not None
        assert run.teaching.dataset.observations.shape == (24, 2, 4, 44, 44, 1)
    assert load_state(config.run_dir / "checkpoint.npz")["agent"]["total_steps"] == rounds[-1].step
    assert export_preferences(config.run_dir, tmp_path / "labels.npz") == 24
    restored = load_preferences(tmp_path / "labels.npz", env_id=config.env_id)
    assert restored.observations.dtype == np.uint8
    np.testing.assert_array_equal(restored.observations, run.teaching.dataset.observations)


def test_it_is_described_without_being_tried() -> None:
    task = describe_task("teacher/MovingDot-v1")
    assert (task.horizon, task.fps, task.never_terminates) == (40, 10, True)

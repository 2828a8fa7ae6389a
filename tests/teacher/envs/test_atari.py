"""Atari games as the 2017 paper prepares them: what is seen, what is hidden, and their replay."""

import contextlib

import numpy as np
import pytest

from agents.defaults import ATARI
from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.envs.atari import GAMES, AtariGame
from teacher.envs.episodes import replay
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.training.parts import make_agent


def test_a_game_is_a_task_with_pictures_that_never_ends_by_itself() -> None:
    task = describe_task("teacher/Pong-v1")
    assert (task.horizon, task.fps, task.never_terminates) == (4500, 15, True)
    assert task.observation_space.shape == (4, 84, 84)
    assert task.observation_space.dtype == np.uint8
    config = TeachConfig(env_id=task.env_id, predictor="rl", name="x")
    with contextlib.closing(make_vector_env(task, 2, 1)) as envs:
        assert make_agent(config, envs).config.rollout_steps == ATARI.ppo.num_steps
    RewardPredictor(task.observation_space, task.action_space, config.reward, seed=1)


@pytest.mark.parametrize("name", GAMES)
def test_score_is_blacked_out(name: str) -> None:
    env = AtariGame(name, render_mode="rgb_array")
    seen, info = env.reset(seed=1)
    assert info == {}
    picture = env.render()
    assert picture.shape == (210, 160, 3)
    for area in GAMES[name].hidden:
        assert not picture[area].any()
        rows, columns = (
            slice(
                int(np.ceil((part.start or 0) * 84 / size)) + 1,
                int((size if part.stop is None else part.stop) * 84 / size) - 1,
            )
            for part, size in zip(area, (210, 160), strict=True)
        )
        assert not seen[:, rows, columns].any()
    assert seen.any()
    env.close()


@pytest.mark.parametrize("name", GAMES)
def test_every_game_replays_bit_by_bit(name: str) -> None:
    task = describe_task(f"teacher/{name}-v1")
    with contextlib.closing(make_vector_env(task, 1, 5)) as envs:
        envs.reset()
        for time in range(12):
            envs.step(np.array([time % 3]))
        (trajectory,) = envs.drain()
    for step, recorded in zip(replay(trajectory.recipe()), trajectory.observations, strict=True):
        np.testing.assert_array_equal(step.observation, recorded)


def test_episodes_replay_bit_by_bit_and_the_next_one_too() -> None:
    task = describe_task("teacher/Pong-v1")
    with contextlib.closing(make_vector_env(task, 1, 3)) as envs:
        for _ in range(2):
            envs.reset()
            for time in range(60):
                envs.step(np.array([time // 7 % 6]))
        trajectories = envs.drain()
    assert [len(trajectory) for trajectory in trajectories] == [60, 60]
    for trajectory in trajectories:
        for step, recorded in zip(replay(trajectory.recipe()), trajectory.observations, strict=True):
            np.testing.assert_array_equal(step.observation, recorded)
    assert (trajectories[0].observations[30] != trajectories[1].observations[30]).any()
    stage = ReplayRenderer(task.env_id, task.kwargs)
    frames = list(stage.frames(ClipSpec(trajectories[1].recipe(), 50)))
    stage.close()
    assert [frame.shape for frame in frames] == [(210, 160, 3)] * 10
    assert not np.concatenate([frame[:24] for frame in frames]).any()


def test_the_end_of_a_game_is_a_penalty_and_no_end() -> None:
    env = AtariGame("Qbert")
    env.reset(seed=2)
    env.action_space.seed(2)
    rewards = []
    for _ in range(800):
        before = env._pictures[-1]
        seen, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert (terminated, truncated, info) == (False, False, {})
        np.testing.assert_array_equal(seen[-2], before)
        rewards.append(reward)
    assert set(rewards) == {-1.0, 0.0, 1.0}, "clipped"
    assert 2 <= rewards.count(-1.0) < 20, "one game after the other"
    env.close()


def test_nothing_is_taken_for_the_end_of_a_game_of_pong() -> None:
    assert [name for name, game in GAMES.items() if game.end_penalty == 0] == ["Pong"]

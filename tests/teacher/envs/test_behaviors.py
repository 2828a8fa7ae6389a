"""The behaviors that ship, the moving dot, and Atari games as the 2017 paper prepares them."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.defaults import ATARI
from teacher.behaviors import backflip, counter_clockwise, headstand, windmill
from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.data.checkpoint import load_state
from teacher.datasets.preference_files import load_preferences
from teacher.envs.atari import GAMES, AtariGame
from teacher.envs.dot import MovingDot
from teacher.envs.episodes import replay
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.reward.predictor import RewardPredictor
from teacher.runs.export import export_preferences
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.training.builder import open_run
from teacher.training.loop import Round, train
from teacher.training.parts import make_agent
from tests.teacher.conftest import config_in


def steps_of(observations: NDArray[Any]) -> Any:
    """Something that passes through these observations."""
    return SimpleNamespace(observations=observations[:-1], next_observations=observations[1:])


def hop(pitch: NDArray[Any], height: NDArray[Any] | float) -> Any:
    """A hopper with this pitch, forward positive, and height."""
    observations = np.zeros((len(pitch), 11))
    observations[:, 0], observations[:, 1] = height, pitch
    return steps_of(observations)


def reach(angle: NDArray[Any], radius: NDArray[Any] | float, target: tuple[float, float]) -> Any:
    """A reacher whose fingertip goes through these places."""
    observations = np.zeros((len(angle), 10))
    observations[:, 4:6] = target
    tip = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    observations[:, 8:10] = tip - target
    return steps_of(observations)


def test_a_flip_counts_more_the_higher_it_is() -> None:
    once_round = np.linspace(0.3, 0.3 - 2 * np.pi, 61)
    assert backflip(hop(once_round, 1.0)) == pytest.approx(2 * np.pi)
    assert backflip(hop(once_round, 0.25)) == pytest.approx(np.pi / 2)
    assert backflip(hop(once_round[::-1], 1.0)) == pytest.approx(-2 * np.pi)
    # The integral of 1 + sin(t) from 0 to 2 pi, to what sixty steps allow.
    assert backflip(hop(once_round, 1 + np.sin(0.3 - once_round))) == pytest.approx(2 * np.pi, rel=1e-3)


def test_the_fingertip_may_go_round_several_times() -> None:
    rounds = np.linspace(2.0, 2.0 + 6 * np.pi, 50)
    radius = np.linspace(0.05, 0.2, 50)
    assert counter_clockwise(reach(rounds, radius, (0.1, -0.1))) == pytest.approx(6 * np.pi)
    assert counter_clockwise(reach(rounds[::-1], radius, (0.0, 0.2))) == pytest.approx(-6 * np.pi)
    assert counter_clockwise(reach(np.full(5, 1.0), 0.1, (0.1, 0.1))) == 0.0


@pytest.mark.parametrize(
    ("env_id", "behavior"),
    [
        ("teacher/ShortHopper-v1", backflip),
        ("teacher/ShortReacher-v1", counter_clockwise),
        ("teacher/ShortCheetah-v1", headstand),
        ("Pendulum-v1", windmill),
    ],
)
def test_the_segments_of_an_episode_add_up_to_it(env_id: str, behavior: Callable[[Any], float]) -> None:
    (episode,) = itertools.islice(random_trajectories(describe_task(env_id), seed=1, num_envs=1), 1)
    half = len(episode) // 2
    observations = episode.all_observations
    halves = steps_of(observations[: half + 1]), steps_of(observations[half:])
    assert sum(map(behavior, halves)) == pytest.approx(behavior(episode), abs=1e-9)


def test_a_flip_is_what_the_simulated_torso_does() -> None:
    """The torso's own axes say which way it turned: backward takes its top from +z towards -x."""
    (episode,) = itertools.islice(random_trajectories(describe_task("teacher/ShortHopper-v1"), 1, 1), 1)
    places = [
        (step.env.unwrapped.data.body("torso").xpos[2], *step.env.unwrapped.data.body("torso").xmat[[2, 8]])  # type: ignore[attr-defined]
        for step in replay(episode.recipe())
    ]
    height, top_x, top_z = np.array(places).T
    backward = np.unwrap(np.arctan2(-top_x, top_z))
    expected = ((height[1:] + height[:-1]) / 2) @ np.diff(backward)
    first = hop(episode.observations[:2, 1], episode.observations[:2, 0])  # which the replay does not show
    assert abs(expected) > 1
    # After a step MuJoCo's frames are those of a moment before.
    assert backflip(episode) == pytest.approx(expected + backflip(first), abs=1e-3)


def test_counter_clockwise_is_what_the_simulated_fingertip_does() -> None:
    (episode,) = itertools.islice(random_trajectories(describe_task("teacher/Reacher-v1"), 3, 1), 1)
    tips = np.array(
        [step.env.unwrapped.get_body_com("fingertip")[:2].copy() for step in replay(episode.recipe())]  # type: ignore[attr-defined]
    )
    (x, y), (next_x, next_y) = tips[:-1].T, tips[1:].T
    expected = np.arctan2(x * next_y - y * next_x, x * next_x + y * next_y).sum()
    first = steps_of(episode.observations[:2])
    assert counter_clockwise(episode) == pytest.approx(expected + counter_clockwise(first), abs=1e-3)


def test_a_cheetah_on_its_head_has_its_nose_down() -> None:
    """Its own axes say so: +x of the torso, where the head is, points to the ground."""
    (episode,) = itertools.islice(random_trajectories(describe_task("teacher/ShortCheetah-v1"), 1, 1), 1)
    noses = [step.env.unwrapped.data.body("torso").xmat[6] for step in replay(episode.recipe())]  # type: ignore[attr-defined]
    assert np.ptp(noses) > 0.3
    # The behavior looks at the observation before each step, the replay shows what comes after.
    expected = np.sin(episode.observations[0, 1]) - np.sum(noses[:-1])
    assert headstand(episode) == pytest.approx(expected, abs=0.5)


def test_a_windmill_turns_by_the_angle_between_its_first_and_its_last_direction() -> None:
    (episode,) = itertools.islice(random_trajectories(describe_task("Pendulum-v1"), 1, 1), 1)
    observations = episode.all_observations
    angle = np.unwrap(np.arctan2(observations[:, 1], observations[:, 0]))
    assert windmill(episode) == pytest.approx(angle[-1] - angle[0], abs=1e-3)


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
    config = config_in(
        tmp_path,
        "teacher/MovingDot-v1",
        name="dot",
        n_labels=24,
        segment_steps=4,
        num_timesteps=1_000,
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

"""DMControl's tasks are used as the suite defines them; ``make test-dmc`` runs this file."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from dm_control import suite

from teacher.clips.render import ClipSpec, frames_of
from teacher.envs.episodes import declares
from teacher.envs.make import make_env
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.errors import EnvironmentUnsuitableError
from tests.suites.checks import assert_other_version_is_refused, horizon_found_with, recorded

WALK = "dm_control/walker-walk"


@pytest.mark.parametrize("prefix", ["", "shimmy:"])
@pytest.mark.parametrize("version", ["", "-v0"])
def test_an_id_needs_neither_prefix_nor_version(prefix: str, version: str) -> None:
    task = describe_task(f"{prefix}{WALK}{version}")
    assert (task.env_id, task.kwargs) == (f"{WALK}-v0", {})
    assert (task.horizon, task.never_terminates, task.fps) == (1000, True, 40)
    assert task.observation_space.shape == (24,)


@pytest.mark.parametrize("name", ["walker-wlk", "walkr-walk"])
def test_an_unknown_task_is_refused(name: str) -> None:
    with pytest.raises(EnvironmentUnsuitableError, match=f"no task {name}; did you mean walker-walk, "):
        describe_task(f"dm_control/{name}")


@pytest.mark.parametrize(("limit", "expected"), [({}, 1000), ({"max_episode_steps": 30}, 30)])
def test_only_the_step_limit_ends_an_episode(limit: dict[str, int], expected: int) -> None:
    env = make_env("dm_control/cheetah-run", limit)
    env.reset(seed=1)
    ends = [env.step(np.zeros(6))[2:4] for _ in range(expected)]
    assert ends == [(False, False)] * (expected - 1) + [(False, True)]
    env.close()


def test_a_task_that_ends_its_episodes_terminates() -> None:
    env: Any = make_env("dm_control/lqr-lqr_2_1", {})
    assert not declares(env, "never_terminates")
    env.reset(seed=1)
    physics = env.unwrapped._env.physics
    with physics.reset_context():
        physics.data.qpos[:] = 0
    assert env.step(np.zeros(env.action_space.shape))[2:4] == (True, False)
    env.close()


@pytest.mark.parametrize("task", ["walker-walk", "cheetah-run", "quadruped-walk", "reacher-easy"])
def test_steps_are_those_of_the_suite(task: str) -> None:
    env, theirs = make_env(f"dm_control/{task}", {}), suite.load(*task.split("-"), {"random": 7})

    def flat(outcome: Any) -> Any:
        return np.concatenate([np.ravel(outcome.observation[name]) for name in sorted(outcome.observation)])

    np.testing.assert_array_equal(env.reset(seed=7)[0], flat(theirs.reset()))
    env.action_space.seed(8)
    for _ in range(50):
        action = env.action_space.sample()
        expected = theirs.step(action)
        observation, reward, *_ = env.step(action)
        np.testing.assert_array_equal(observation, flat(expected))
        assert reward == expected.reward
    env.close()


@pytest.mark.parametrize(("domain", "task"), suite.ALL_TASKS)
def test_every_task_can_be_replayed(domain: str, task: str) -> None:
    one, other = (make_env(f"dm_control/{domain}-{task}", {}) for _ in range(2))
    bounded = np.random.default_rng(5).uniform(-1, 1, (20, *one.action_space.shape))  # type: ignore[misc]
    other.reset(seed=1)
    other.step(bounded[0].copy())
    assert one.reset(seed=2)[0] in one.observation_space
    other.reset(seed=2)
    for action in bounded:
        here, there = one.step(action.copy()), other.step(action.copy())
        np.testing.assert_array_equal(here[0], there[0])
        assert here[1] == there[1]
    one.close()
    other.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clip_shows_the_camera_that_follows_the_robot(workers: int) -> None:
    segment = recorded(WALK, workers=workers)
    frames = list(frames_of(ClipSpec.of(segment)))  # checks every observation
    assert np.shape(frames) == (20, 400, 400, 3)
    theirs = suite.load("walker", "walk", {"random": segment.recipe.seed})
    theirs.reset()
    for action in segment.recipe.actions:
        theirs.step(action)
    np.testing.assert_array_equal(frames[-1], theirs.physics.render(400, 400, camera_id=0))


def test_frames_are_captured_with_several_threads() -> None:
    envs = make_vector_env(describe_task(WALK, captures=True), 3, seed=3, workers=2)
    envs.reset()
    for _ in range(5):
        envs.step(envs.action_space.sample())
    envs.close()
    assert [len(trajectory.frames or ()) for trajectory in envs.drain()] == [5, 5, 5]


@pytest.mark.parametrize("camera", [99, "nowhere"])
def test_a_camera_that_does_not_exist_is_refused(camera: int | str) -> None:
    with pytest.raises(
        EnvironmentUnsuitableError, match="camera_id: expected 0 to 1, or one of side, back; got"
    ):
        make_env(WALK, {"camera_id": camera})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dm_control/x", "expected an ID such as dm_control/walker-walk$"),
        ("dm_control/", "expected an ID such as dm_control/walker-walk$"),
        ("dm_control/walker-walk-v1", r"did you mean dm_control/walker-walk\?"),
        ("dm_control/ball-in-cup-catch", r"did you mean dm_control/ball_in_cup-catch\?"),
    ],
)
def test_an_id_of_another_form_is_refused(name: str, hint: str) -> None:
    with pytest.raises(EnvironmentUnsuitableError, match=hint):
        describe_task(name)


def test_resets_without_a_seed_differ() -> None:
    one, other = (make_env(WALK, {}) for _ in range(2))
    assert not np.array_equal(one.reset()[0], other.reset()[0])
    assert not np.array_equal(one.reset()[0], one.reset()[0])
    one.close()
    other.close()


def test_a_described_task_can_be_made_by_gymnasium() -> None:
    env = gym.make(describe_task(WALK).env_id)
    assert env.reset(seed=1)[0].shape == (24,)
    env.close()


@pytest.mark.parametrize("package", ["mujoco", "dm-control"])
def test_a_replay_with_another_version_is_refused(package: str) -> None:
    assert_other_version_is_refused(WALK, package)


@pytest.mark.parametrize("choice", ["disable", "bogus"])
def test_physics_needs_no_opengl(choice: str) -> None:
    assert horizon_found_with(WALK, choice) == (1000, b"")


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_run_learns_from_a_scripted_teacher(algorithm: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "teacher", "-p", "synth", "-a", algorithm, "-e", WALK, "-n", "walk"]
    command += ["-t", "1100", "-l", "20", "--pretrain_labels", "10", "--runs_dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (events,) = tmp_path.glob("*/walk/tensorboard/*")
    loss = {"ppo": b"agent/policy_loss", "sac": b"agent/critic_loss"}[algorithm]
    assert loss in events.read_bytes()

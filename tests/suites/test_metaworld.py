"""Meta-World's tasks are used as it defines them; ``make test-metaworld`` runs this file."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
from metaworld.policies import ENV_POLICY_MAP
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from teacher.clips.render import ClipSpec, frames_of
from teacher.envs.make import make_env
from teacher.envs.recipe import library_versions
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.errors import EnvironmentUnsuitableError
from tests.suites.checks import assert_other_version_is_refused, horizon_found_with, recorded

PRESS = "metaworld/button-press"
TASKS = [name.removesuffix("-v3") for name in ALL_V3_ENVIRONMENTS]
RANDOM = np.random.default_rng(5).uniform(-1, 1, (30, 4)).astype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:Constant.s. may be too high:UserWarning")  # of policies


def solving(task: str, observation: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the action of Meta-World's own policy for a task."""
    action: NDArray[np.float64] = ENV_POLICY_MAP[f"{task}-v3"]().get_action(observation)
    return np.clip(action, -1, 1).astype(np.float32)


def solve(env: gym.Env[Any, Any], task: str, seed: int) -> bool:
    """Follow Meta-World's own policy for 200 steps, and return whether the last one solved the task."""
    observation, info = env.reset(seed=seed)
    for _ in range(200):
        observation, _, _, _, info = env.step(solving(task, observation))
    return bool(info["success"])


@pytest.mark.parametrize("version", ["", "-v3"])
def test_an_id_needs_no_version(version: str) -> None:
    task = describe_task(PRESS + version)
    assert (task.env_id, task.kwargs) == (f"{PRESS}-v3", {})
    assert (task.horizon, task.never_terminates, task.reports_success) == (500, True, True)
    assert (task.observation_space.shape, task.action_space.shape) == ((39,), (4,))
    theirs = ALL_V3_ENVIRONMENTS["button-press-v3"]()
    assert task.fps == 80 == round(1 / theirs.dt)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="no task buton-press; did you mean button-press, "):
        describe_task("metaworld/buton-press")


@pytest.mark.parametrize(("limit", "expected"), [({}, 500), ({"max_episode_steps": 600}, 600)])
def test_only_the_step_limit_ends_an_episode(limit: dict[str, int], expected: int) -> None:
    env = make_env(PRESS, limit)
    env.reset(seed=1)
    ends = [env.step(np.zeros(4, np.float32))[2:4] for _ in range(expected)]
    assert ends == [(False, False)] * (expected - 1) + [(False, True)]
    env.close()


@pytest.mark.parametrize("task", TASKS)
def test_steps_are_those_of_meta_world_with_the_same_positions(task: str) -> None:
    env: Any = make_env(f"metaworld/{task}", {})
    theirs = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-v3-goal-observable"](seed=0)
    for seed in (7, 8):
        observation, _ = env.reset(seed=seed)
        theirs._last_rand_vec = env.unwrapped._env._last_rand_vec.copy()
        np.testing.assert_array_equal(observation, theirs.reset()[0])
        assert observation in env.observation_space
        assert observation[-3:].any(), "the goal is visible"
        for action in RANDOM:
            (*ours, info), (*expected, their_info) = env.step(action.copy()), theirs.step(action.copy())
            np.testing.assert_array_equal(ours[0], expected[0])
            assert (ours[1], info) == (expected[1], their_info)
    env.close()
    theirs.close()


def test_each_seed_has_its_own_positions() -> None:
    env = make_env(PRESS, {})
    starts = [env.reset(seed=seed)[0] for seed in range(5)] + [env.reset()[0] for _ in range(5)]
    assert len({observation[4:7].tobytes() for observation in starts}) == 10  # of the button
    assert len({observation[36:].tobytes() for observation in starts}) == 10  # of the goal
    env.close()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_be_replayed(task: str) -> None:
    one, other = (make_env(f"metaworld/{task}", {}) for _ in range(2))
    solve(other, task, seed=1)
    observation, _ = one.reset(seed=2)
    np.testing.assert_array_equal(other.reset(seed=2)[0], observation)
    for step in range(120):
        action = solving(task, observation) if step < 90 else RANDOM[step - 90]
        here, there = one.step(action.copy()), other.step(action.copy())
        observation = here[0]
        np.testing.assert_array_equal(observation, there[0])
        assert (here[1], here[4]) == (there[1], there[4])
    one.close()
    other.close()


def test_a_solved_task_is_reported_whatever_follows() -> None:
    envs = make_vector_env(describe_task(PRESS, 200), 2, seed=3)
    observations, _ = envs.reset()
    for step in range(200):
        action = (
            solving("button-press", observations[0]) if step < 150 else np.array([0, -1, 0, 0], np.float32)
        )
        observations, *_ = envs.step(np.stack([action, np.zeros(4, np.float32)]))
    envs.close()
    assert [(episode.finished, episode.succeeded) for episode in envs.drain()] == [
        (True, True),
        (True, False),
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clip_shows_the_robot_from_a_corner_and_upright(workers: int) -> None:
    segment = recorded(PRESS, workers=workers)
    frames = list(frames_of(ClipSpec.of(segment)))  # checks every observation
    assert np.shape(frames) == (20, 400, 400, 3)
    theirs = ALL_V3_ENVIRONMENTS["button-press-v3"](
        render_mode="rgb_array", camera_name="corner4", width=400, height=400
    )
    env: Any = make_env(PRESS, {})
    env.reset(seed=segment.recipe.seed)
    theirs.model.vis.quality.shadowsize = 1024
    theirs._set_task_called, theirs._last_rand_vec = True, env.unwrapped._env._last_rand_vec
    theirs.reset()
    for action in segment.recipe.actions:
        theirs.step(action)
    np.testing.assert_array_equal(frames[-1], theirs.render()[::-1, ::-1])
    env.close()
    theirs.close()


@pytest.mark.parametrize(("camera", "is_upright"), [("corner2", False), ("topview", True)])
def test_a_camera_can_be_chosen(camera: str, is_upright: bool) -> None:
    env: Any = make_env(PRESS, {}, "rgb_array", camera_name=camera, width=64, height=48)
    env.reset(seed=1)
    theirs = env.unwrapped._env.render()
    assert theirs.shape == (48, 64, 3)
    np.testing.assert_array_equal(env.render(), theirs if is_upright else theirs[::-1, ::-1])
    env.close()


def test_the_marker_of_the_goal_is_where_the_goal_is() -> None:
    env: Any = make_env("metaworld/sweep", {}, "rgb_array", width=100, height=100)
    env.reset(seed=1)
    env.step(np.zeros(4, np.float32))
    picture, inner = env.render(), env.unwrapped._env
    assert not inner.data.site("goal").xpos.any()
    assert not np.array_equal(picture, inner.render()[::-1, ::-1])
    inner.model.site("goal").pos, inner.model.site("goal").sameframe = inner._target_pos, 0
    mujoco.mj_forward(inner.model, inner.data)
    np.testing.assert_array_equal(picture, inner.render()[::-1, ::-1])
    env.close()


@pytest.mark.parametrize("task", ["sweep", "door-lock", "faucet-open"])
def test_drawing_does_not_change_an_episode(task: str) -> None:
    drawn, plain = (
        make_env(f"metaworld/{task}", {}, render_mode, width=32, height=32)
        for render_mode in ("rgb_array", None)
    )
    for seed in (1, 2):
        np.testing.assert_array_equal(drawn.reset(seed=seed)[0], plain.reset(seed=seed)[0])
        for action in RANDOM:
            drawn.render()
            here, there = drawn.step(action.copy()), plain.step(action.copy())
            np.testing.assert_array_equal(here[0], there[0])
            assert (here[1], here[4]) == (there[1], there[4])
    drawn.close()
    plain.close()


@pytest.mark.parametrize("package", ["mujoco", "metaworld"])
def test_a_replay_with_another_version_is_refused(package: str) -> None:
    assert_other_version_is_refused(PRESS, package)


@pytest.mark.parametrize("choice", ["disable", "bogus"])
@pytest.mark.parametrize("env_id", [PRESS, "Hopper-v5", "ShortHopper-v1"])
def test_making_an_environment_needs_no_opengl_and_prints_nothing(env_id: str, choice: str) -> None:
    horizons = {PRESS: 500, "Hopper-v5": 1000, "ShortHopper-v1": 300}
    assert horizon_found_with(env_id, choice) == (horizons[env_id], b"")


def test_gymnasiums_own_tasks_work_with_this_mujoco() -> None:
    assert library_versions()["mujoco"] == "3.3.0"
    segment = recorded("Hopper-v5", steps=30)
    assert np.shape(list(frames_of(ClipSpec.of(segment)))) == (20, 400, 400, 3)


def test_a_run_learns_from_a_scripted_teacher(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "teacher", "-p", "synth", "-a", "sac", "-e", PRESS, "-n", "press"]
    command += ["-t", "1100", "-l", "20", "--pretrain_labels", "10", "--max_episode_steps", "100"]
    command += ["--runs_dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " success " in done.stdout
    (events,) = tmp_path.glob("*/press/tensorboard")
    rates = EventAccumulator(str(events)).Reload().Scalars("agent/success_rate")
    assert all(0 <= rate.value <= 1 for rate in rates)
    assert rates[-1].step >= 1000


def test_a_camera_that_does_not_exist_is_refused() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match=r"expected one of topview, .*; got 'front'"):
        make_env("metaworld/reach", {"camera_name": "front"})

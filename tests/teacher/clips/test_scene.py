"""MuJoCo pictures: the body is in sight, the ground tells its motion, and the physics is left alone."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.clips.scene import MujocoScene
from teacher.envs.make import make_env

SIZE = 256
TASKS = [
    *("Hopper-v1", "Walker-v1", "Cheetah-v1", "Swimmer-v1", "Ant-v1", "Humanoid-v1", "Reacher-v1"),
    *("InvertedPendulum-v1", "DoublePendulum-v1"),
]


Staged = tuple[Any, MujocoScene]


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[tuple[gym.Env[Any, Any], MujocoScene]]:
    """An environment and its scene, for all tests of that environment."""
    with make_env(request.param, {}) as env:
        env.reset(seed=1)
        bare: Any = env.unwrapped
        scene = MujocoScene(bare.model, bare.mujoco_renderer.default_cam_config, SIZE)
        yield env, scene
        scene.close()


@pytest.fixture
def staged(stage: tuple[gym.Env[Any, Any], MujocoScene]) -> Staged:
    """Draw it where it begins."""
    stage[0].reset(seed=1)
    return stage[0].unwrapped, stage[1]


def of(*env_ids: str) -> pytest.MarkDecorator:
    """With the environment that ``staged`` shows."""
    return pytest.mark.parametrize("stage", env_ids, indirect=True, scope="module")


@of(*TASKS)
def test_there_is_no_black_void_and_the_body_stands_out(staged: Staged) -> None:
    env, scene = staged
    picture = scene.draw(env.data).astype(int)
    assert picture.shape == (SIZE, SIZE, 3)
    assert (picture.sum(2) < 60).mean() < 0.01, "black"
    colorful = picture.max(2) - picture.min(2) > 80
    assert 0.004 < colorful.mean() < 0.4, "the body"
    rows, columns = np.nonzero(colorful)
    assert 0.15 * SIZE < rows.mean() < 0.85 * SIZE
    assert 0.25 * SIZE < columns.mean() < 0.75 * SIZE


@of("Hopper-v1", "Cheetah-v1", "Ant-v1", "Humanoid-v1")
def test_the_camera_follows_and_the_ground_shows_it(staged: Staged) -> None:
    env, scene = staged
    here = scene.draw(env.data).astype(int)
    env.data.qpos[0] += 33.25  # a quarter of a metre beside the same tiles
    env.set_state(env.data.qpos, env.data.qvel)
    there = scene.draw(env.data).astype(int)
    moved = np.abs(here - there).max(2) > 8
    body = here.max(2) - here.min(2) > 80
    assert moved[body].mean() < 0.1, "the body stays where it was in the picture"
    assert moved.mean() > 0.05, "the tiles moved"


@of("Hopper-v1")
def test_a_jump_is_seen_as_one(staged: Staged) -> None:
    env, scene = staged
    low = body_row(scene.draw(env.data))
    env.data.qpos[1] += 0.5
    env.set_state(env.data.qpos, env.data.qvel)
    high = body_row(scene.draw(env.data))
    assert low - high > 0.1 * SIZE


@of("Ant-v1")
def test_drawing_leaves_the_model_alone(staged: Staged) -> None:
    env, scene = staged
    before = env.model.geom_rgba.copy(), env.model.geom_size.copy(), env.model.tex_data.copy()
    scene.draw(env.data)
    after = env.model.geom_rgba, env.model.geom_size, env.model.tex_data
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@of("Pusher-v5")
def test_a_model_without_a_view_of_ours_is_drawn_with_its_own(staged: Staged) -> None:
    env, scene = staged
    assert scene.draw(env.data).std() > 10


def body_row(picture: Any) -> float:
    picture = picture.astype(int)
    rows, _ = np.nonzero(picture.max(2) - picture.min(2) > 80)
    return float(rows.mean())

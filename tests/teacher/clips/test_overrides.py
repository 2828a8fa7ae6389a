"""A clip shows what the environment's own ``render()`` shows, whoever overrides it and however it paints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
from numpy.typing import NDArray

from teacher.clips.overrides import draws_as_gymnasium
from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.envs.capture import as_frame, jpeg
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import EnvironmentUnsuitableError, RenderError

RED = np.full((48, 64, 3), (255, 0, 0), np.uint8)
Env = gym.Env[Any, Any]


class Rewarded(HopperEnv):
    """Nothing about its picture is its own."""

    def step(self, action: NDArray[np.float32]) -> Any:
        observation, _, *rest = super().step(action)  # type: ignore[no-untyped-call]
        return observation, 1.0, *rest


class Red(HopperEnv):
    def render(self) -> Any:
        return RED


class RedWrapper(gym.Wrapper[Any, Any, Any, Any]):
    def render(self) -> Any:
        return RED


class Quiet(gym.Wrapper[Any, Any, Any, Any]):
    """Does nothing."""


class Other(MujocoRenderer):
    """Might draw anything."""


def painted() -> Env:
    env = HopperEnv(render_mode="rgb_array")
    env.model.geom_rgba[:] = (1.0, 0.0, 0.0, 1.0)
    return env


def with_another_renderer() -> Env:
    env = HopperEnv(render_mode="rgb_array")
    env.mujoco_renderer = Other(env.model, env.data, env.mujoco_renderer.default_cam_config, 480, 480)
    return env


def with_a_patched_method() -> Env:
    env = HopperEnv(render_mode="rgb_array")
    env.render = lambda: RED  # type: ignore[method-assign]
    return env


def with_another_model(folder: Path) -> Env:
    source = Path(HopperEnv(render_mode="rgb_array").fullpath)
    (folder / "hopper.xml").write_text(source.read_text())
    return HopperEnv(xml_file=str(folder / "hopper.xml"), render_mode="rgb_array")


def hopper(**settings: Any) -> Callable[[], Env]:
    return lambda: gym.make("Hopper-v5", render_mode="rgb_array", **settings)


PLAIN = {
    "as registered": hopper(),
    "a task of ours": lambda: gym.make("teacher/ShortHopper-v1", render_mode="rgb_array"),
    "without a camera of its own": lambda: gym.make("Swimmer-v5", render_mode="rgb_array"),
    "an older version": lambda: gym.make("Hopper-v4", render_mode="rgb_array"),
    "another reward": lambda: Rewarded(render_mode="rgb_array"),
    "a wrapper that does nothing": lambda: Quiet(HopperEnv(render_mode="rgb_array")),
}
OWN = {
    "render()": lambda: Red(render_mode="rgb_array"),
    "a wrapper's render()": lambda: Quiet(RedWrapper(HopperEnv(render_mode="rgb_array"))),
    "a patched render()": with_a_patched_method,
    "a renderer": with_another_renderer,
    "paint": painted,
    "width": hopper(width=200),
    "height": hopper(height=200),
    "camera_id": hopper(camera_id=0),
    "camera_name": hopper(camera_name="track"),
    "default_camera_config": hopper(default_camera_config={"distance": 9.0}),
    "visual_options": hopper(visual_options={0: True}),
    "not MuJoCo": lambda: gym.make("CartPole-v1", render_mode="rgb_array"),
}


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_the_quick_scene_shows_what_nothing_overrides(make: Callable[[], Env]) -> None:
    assert draws_as_gymnasium(make())


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_whatever_draws_in_a_way_of_its_own_is_asked(make: Callable[[], Env]) -> None:
    assert not draws_as_gymnasium(make())


def test_a_model_file_of_ones_own_draws_itself(tmp_path: Path) -> None:
    assert not draws_as_gymnasium(with_another_model(tmp_path))


@pytest.mark.parametrize("name", ["render()", "a wrapper's render()", "a patched render()"])
def test_a_clip_shows_what_the_override_draws(name: str) -> None:
    recipe = EpisodeRecipe("Hopper-v5", {}, seed=1, actions=np.zeros((3, 3), np.float32))
    stage = ReplayRenderer("Hopper-v5", {}, make=OWN[name])
    frames = list(stage.frames(ClipSpec(recipe)))
    stage.close()
    assert len(frames) == 3
    assert all((frame == RED).all() for frame in frames)


def test_floats_from_0_to_1_are_scaled_to_bytes() -> None:
    frame = as_frame(np.full((2, 4, 3), 0.5))
    assert frame.dtype == np.uint8
    assert (frame == 128).all()
    assert (as_frame(RED.astype(np.int64)) == RED).all()
    assert (as_frame(RED.astype(np.float32) / 255) == RED).all()


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (RED.astype(np.float32), "float32 values from 0 to 255; frames must be uint8, or floats from 0 to 1"),
        (RED.astype(np.int64) - 1, "int64 values from -1 to 254"),
        (np.full((2, 4, 3), np.nan), "float64 values from nan to nan"),
        (np.zeros((2, 4, 3), bool), "bool values from 0 to 0"),
        (np.zeros((2, 4), np.uint8), r"shape \(2, 4\); expected an RGB array"),
        (np.zeros((2, 4, 4), np.uint8), r"shape \(2, 4, 4\)"),
        ([RED], "list"),
        (None, "NoneType"),
    ],
)
def test_a_picture_of_other_numbers_or_another_shape_is_refused(picture: Any, says: str) -> None:
    with pytest.raises(RenderError, match=f"Hopper rendered {says}"):
        as_frame(picture, "Hopper")
    with pytest.raises(EnvironmentUnsuitableError, match=f"Hopper rendered {says}"):
        jpeg(picture, "Hopper")

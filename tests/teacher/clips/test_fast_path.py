"""A clip shows what the environment's own ``render()`` shows, whatever is changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco import hopper_v5
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer
from numpy.typing import NDArray

from teacher.clips import fast_path
from teacher.clips.fast_path import FastPath
from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.envs.capture import as_frame, draw, jpeg
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import EnvironmentUnsuitableError, RenderError

RED = np.full((48, 64, 3), (255, 0, 0), np.uint8)
SMALL: dict[str, Any] = {"render_mode": "rgb_array", "width": 64, "height": 64}
Env = gym.Env[Any, Any]


class Rewarded(HopperEnv):
    """Nothing about its picture is its own."""

    def step(self, action: NDArray[np.float32]) -> Any:
        observation, _, *rest = super().step(action)  # type: ignore[no-untyped-call]
        return observation, 1.0, *rest


class Varied(HopperEnv):
    """Draws its limbs and light anew for each episode; changes its color and marks a goal in each step."""

    def reset_model(self) -> Any:
        self.model.geom_size[1:] = self.np_random.uniform(0.05, 0.3)
        self.model.light_diffuse[:] = self.np_random.uniform(0.0, 1.0, 3)
        return super().reset_model()  # type: ignore[no-untyped-call]

    def step(self, action: NDArray[np.float32]) -> Any:
        self.model.geom_matid[1:] = -1
        self.model.geom_rgba[1:] = (1.0, 0.2 * (self.data.time > 0.02), 0.0, 1.0)
        viewer = self.mujoco_renderer._get_viewer("rgb_array")
        viewer.add_marker(pos=9.0 * self.data.qpos[:3], size=np.full(3, 0.3))
        return super().step(action)  # type: ignore[no-untyped-call]


class Red(HopperEnv):
    def render(self) -> Any:
        return RED


class RedWrapper(gym.Wrapper[Any, Any, Any, Any]):
    def render(self) -> Any:
        return RED


class Painter(gym.Wrapper[Any, Any, Any, Any]):
    """Has no ``render()`` of its own."""

    def reset(self, **settings: Any) -> Any:
        bare: Any = self.unwrapped
        bare.model.site_pos[:] += 1.0
        return super().reset(**settings)


class Other(MujocoRenderer):
    """Might draw anything."""


def changed(change: Callable[[Any], None]) -> Callable[[], Env]:
    def make() -> Env:
        env = HopperEnv(render_mode="rgb_array")
        change(env)
        return env

    return make


def replace_renderer(env: Any) -> None:
    env.mujoco_renderer = Other(env.model, env.data, env.mujoco_renderer.default_cam_config, 480, 480)


def hopper(**settings: Any) -> Callable[[], Env]:
    return lambda: gym.make("Hopper-v5", render_mode="rgb_array", **settings)


PLAIN = {
    "as registered": hopper(),
    "another reward": hopper(forward_reward_weight=2.0),
    "a task of ours": lambda: gym.make("teacher/ShortHopper-v1", render_mode="rgb_array"),
    "without a camera of its own": lambda: gym.make("Swimmer-v5", render_mode="rgb_array"),
    "an older version": lambda: gym.make("Hopper-v4", render_mode="rgb_array"),
    "clipped actions": lambda: gym.wrappers.ClipAction(hopper()()),
}
OWN: dict[str, tuple[Callable[[], Env], str]] = {
    "a subclass": (lambda: Rewarded(render_mode="rgb_array"), "Rewarded is not an environment of Gymn"),
    "a wrapper": (lambda: Painter(hopper()()), "the wrapper Painter might change its frames"),
    "a patched render()": (changed(lambda env: setattr(env, "render", lambda: RED)), "HopperEnv.render was"),
    "a patched reset": (changed(lambda env: setattr(env, "reset_model", env.reset)), "HopperEnv.reset_model"),
    "a renderer": (changed(replace_renderer), "it has a renderer of its own"),
    "an open viewer": (changed(lambda env: env.mujoco_renderer._viewers.update(human=None)), "it has a rend"),
    "width": (hopper(width=200), "its renderer has another width"),
    "height": (hopper(height=200), "its renderer has another height"),
    "camera_id": (hopper(camera_id=0), "its renderer has another camera_id"),
    "camera_name": (hopper(camera_name="track"), "its renderer has another camera_id"),
    "camera": (hopper(default_camera_config={"distance": 9.0}), "another default_cam_config"),
    "visual_options": (hopper(visual_options={0: True}), "its renderer has another vopt"),
}
CHANGES: dict[str, Callable[[Any], None]] = {
    "colors": lambda model: model.geom_rgba.fill(0.5),
    "a texture": lambda model: model.tex_data.fill(9),
    "a size": lambda model: model.geom_size.__imul__(1.1),
    "light": lambda model: model.vis.headlight.diffuse.fill(0.0),
    "the field of view": lambda model: setattr(model.vis.global_, "fovy", 70),
    "an option": lambda model: setattr(model.opt, "timestep", 0.001),
}


def spec(seed: int = 1, steps: int = 3, start: int = 0) -> ClipSpec:
    return ClipSpec(EpisodeRecipe("Hopper-v5", {}, seed, np.full((steps, 3), 0.3, np.float32)), start)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_equal", set())


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_unmodified_environments_may_be_drawn_fast(make: Callable[[], Env]) -> None:
    path = FastPath(make())
    assert not path.why_not
    assert path.has_compiled_model()


@pytest.mark.parametrize(("make", "why"), OWN.values(), ids=OWN)
def test_environments_with_own_rendering_render_themselves(make: Callable[[], Env], why: str) -> None:
    assert why in FastPath(make()).why_not


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_model_renders_itself(change: Callable[[Any], None]) -> None:
    env: Any = HopperEnv(render_mode="rgb_array")
    path = FastPath(env)
    change(env.model)
    assert not path.has_compiled_model()
    path.compare(frames=False)
    assert "model was changed" in path.why_not


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (HopperEnv, "reset_model"),
        (HopperEnv, "step"),
        (OffScreenViewer, "render"),
        (MujocoRenderer, "render"),
    ],
)
def test_method_patched_in_a_class(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    monkeypatch.setattr(kind, name, lambda *args: RED)
    assert FastPath(HopperEnv(render_mode="rgb_array")).why_not == f"{kind.__name__} was replaced"


def test_a_camera_changed_in_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hopper_v5.DEFAULT_CAMERA_CONFIG, "distance", 12.0)
    assert "another default_cam_config" in FastPath(HopperEnv(render_mode="rgb_array")).why_not


def test_a_model_file_of_ones_own_draws_itself(tmp_path: Path) -> None:
    source = Path(HopperEnv(render_mode="rgb_array").fullpath).read_text()
    (tmp_path / "hopper.xml").write_text(source.replace('rgba="0.8 0.6 .4 1"', 'rgba="0 1 0 1"'))
    path = FastPath(HopperEnv(xml_file=str(tmp_path / "hopper.xml"), render_mode="rgb_array"))
    assert not path.has_compiled_model()


def test_compiled_model_is_drawn_fast_once_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = FastPath.compare

    def note(path: FastPath, *, frames: bool, last: bool = False) -> None:
        compared.append((frames, last))
        compare(path, frames=frames, last=last)

    monkeypatch.setattr(FastPath, "compare", note)
    stage = ReplayRenderer("Hopper-v5", {})
    first, again = (list(stage.frames(spec(steps=5, start=2))) for _ in range(2))
    assert compared == [(True, False), (False, False), (True, True)]
    assert stage.note == "clips of Gymnasium's own MuJoCo environments are drawn by the fast renderer"
    assert [frame.shape for frame in first] == 3 * [(400, 400, 3)]
    np.testing.assert_array_equal(first, again)
    bare: Any = stage._env.unwrapped
    bare.model.geom_rgba[:] = 0.5
    changed = list(stage.frames(spec()))
    stage.close()
    assert [frame.shape for frame in changed] == 3 * [(480, 480, 3)]


def test_other_frames_than_gymnasiums_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.wrappers.TimeLimit, "render", lambda self: RED, raising=False)
    stage = ReplayRenderer("Hopper-v5", {})
    clip = list(stage.frames(spec()))
    stage.close()
    assert all((frame == RED).all() for frame in clip)
    assert stage.note.endswith("own render(), because its render() returns other frames than Gymnasium's")


def test_a_clip_is_what_render_returns_whichever_clips_were_drawn_before() -> None:
    env: Any = Varied(**SMALL)
    env.reset(seed=2)
    draw(env)
    expected = []
    for action in spec(2, 4).recipe.actions:
        env.step(action)
        expected.append(draw(env))
    env.close()
    stage = ReplayRenderer("Hopper-v5", {}, make=lambda: Varied(**SMALL))
    other, clip = (list(stage.frames(spec(seed, 4, start=2))) for seed in (1, 2))
    stage.close()
    np.testing.assert_array_equal(clip, expected[2:])
    assert (clip[-1] != other[-1]).any()


@pytest.mark.parametrize("make", [lambda: Red(**SMALL), lambda: RedWrapper(HopperEnv(**SMALL))])
def test_a_clip_shows_what_the_override_draws(make: Callable[[], Env]) -> None:
    stage = ReplayRenderer("Hopper-v5", {}, make=make)
    frames = list(stage.frames(spec()))
    stage.close()
    assert len(frames) == 3
    assert all((frame == RED).all() for frame in frames)


def test_floats_from_0_to_1_are_scaled_to_bytes() -> None:
    frame = as_frame(np.full((2, 4, 3), 0.5))
    assert frame.dtype == np.uint8
    assert (frame == 128).all()
    assert (as_frame(RED.astype(np.int64)) == RED).all()
    assert (as_frame(RED.astype(np.float32) / 255) == RED).all()
    assert (as_frame(RED * np.float32(1.0000001 / 255) - 1e-7) == RED).all(), "rounding errors"


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (RED.astype(np.float32), "float32 values from 0 to 255; frames must be uint8, or floats from 0 to 1"),
        (RED.astype(np.int64) - 1, "int64 values from -1 to 254"),
        (RED / 254, "float64 values from 0 to 1.00393701; frames must be uint8, or floats from 0 to 1"),
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

"""``MUJOCO_GL=glfw`` without a screen is refused with what to do, wherever MuJoCo is drawn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from teacher.envs.gl import select_gl
from teacher.errors import RenderError

REMEDY = (
    "MUJOCO_GL=glfw needs a display, but there is none here (DISPLAY is not set); leave MUJOCO_GL unset, "
    "or set it to egl or osmesa"
)
ENVIRONMENTS = """
import gymnasium as gym
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

class Red(HopperEnv):
    def render(self):
        picture = super().render()
        picture[:] = (255, 0, 0)
        return picture

gym.register("Red-v0", Red, max_episode_steps=100)
"""
RENDER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[0]).parent))
from teacher.clips.render import ReplayRenderer
from teacher.clips import ClipSpec
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.errors import RenderError
from teacher.data.segments import slice_of

episode = next(random_trajectories(describe_task(sys.argv[1]), 1, num_envs=1))
try:
    print(len(list(ReplayRenderer(sys.argv[1], {}).frames(ClipSpec.of(slice_of(episode, 0, 3))))))
except RenderError as error:
    print(error)
"""


def run(folder: Path, env_id: str, mujoco_gl: str) -> str:
    (folder / "red.py").write_text(ENVIRONMENTS)
    (folder / "render.py").write_text(RENDER)
    environment = {
        **{name: value for name, value in os.environ.items() if "DISPLAY" not in name},
        "MUJOCO_GL": mujoco_gl,
    }
    command = [sys.executable, str(folder / "render.py"), env_id]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("env_id", ["Hopper-v5", "red:Red-v0"])
def test_a_clip_on_a_screen_that_is_missing_is_refused_with_the_remedy(tmp_path: Path, env_id: str) -> None:
    assert run(tmp_path, env_id, "glfw") == REMEDY


def test_a_choice_that_there_is_not_keeps_nobody_from_training_and_is_named(tmp_path: Path) -> None:
    said = run(tmp_path, "Hopper-v5", "bogus")
    assert said.startswith("MuJoCo cannot render with MUJOCO_GL=bogus: ")
    assert said.endswith("; leave MUJOCO_GL unset, or install libegl1 and libgl1-mesa-dri, or libosmesa6")


@pytest.mark.parametrize("screen", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_screen_that_is_there_is_drawn_on(monkeypatch: pytest.MonkeyPatch, screen: str) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RenderError, match="there is none here"):
        select_gl.__wrapped__()
    monkeypatch.setenv(screen, ":0")
    assert select_gl.__wrapped__() == "glfw"

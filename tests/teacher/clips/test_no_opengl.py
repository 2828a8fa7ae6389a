"""A machine without OpenGL or without a screen: what needs it is refused before it starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from teacher.clips.trial import check_drawing
from teacher.envs.gl import PACKAGES, install_command, select_gl
from teacher.envs.tasks import describe_task
from teacher.errors import RenderError
from tests.waiting import completed

ROOT = Path(__file__).parents[3]
COMMAND = "apt-get update && apt-get install --yes libegl1 libgl1-mesa-dri libosmesa6"
TRIAL = """
import sys
from teacher.clips.trial import check_drawing
from teacher.envs.tasks import describe_task
from teacher.errors import RenderError
try:
    check_drawing(describe_task(sys.argv[1]), 1)
except RenderError as error:
    print(error)
"""


def test_teach_without_opengl_is_refused(tmp_path: Path, no_opengl: dict[str, str]) -> None:
    command = [*(sys.executable, "-m", "teacher.teach", "-p", "human", "-e", "ShortHopper-v1", "-n", "a")]
    environment = {**no_opengl, "PYTHONPATH": str(ROOT)}
    done = completed([*command, "-L", "4", "-l", "8"], cwd=tmp_path, env=environment)
    assert done.returncode == 1
    why, last = done.stderr.splitlines()
    assert why.startswith(
        "teach: cannot render clips of teacher/ShortHopper-v1 on this machine: MuJoCo clips need"
    )
    assert last == install_command()
    assert [path.name for path in tmp_path.iterdir()] == ["no-opengl"]  # no run, no site


DRAWN = """
import gymnasium as gym
from teacher.errors import RenderError
from teacher.wrapper.controls import drawn
env = gym.make("Hopper-v5", render_mode="rgb_array")
env.reset(seed=1)
try:
    drawn(env)
except RenderError as error:
    print(error)
"""


def test_a_wrapper_that_cannot_draw_says_what_to_type(no_opengl: dict[str, str]) -> None:
    environment = {**no_opengl, "PYTHONPATH": str(ROOT)}
    said = subprocess.check_output([sys.executable, "-c", DRAWN], env=environment, text=True)
    why, last = said.splitlines()
    assert why.startswith("MuJoCo clips need headless OpenGL")
    assert last == install_command()


def test_pygame_needs_no_opengl(no_opengl: dict[str, str]) -> None:
    environment = {**no_opengl, "PYTHONPATH": str(ROOT)}
    said = subprocess.check_output([sys.executable, "-c", TRIAL, "Pendulum-v1"], env=environment, text=True)
    assert said == ""


def test_hopper_is_drawn_with_opengl() -> None:
    check_drawing(describe_task("ShortHopper-v1"), 1)


@pytest.mark.parametrize(("user", "typed"), [(0, COMMAND), (1000, f"sudo sh -c '{COMMAND}'")])
def test_the_command_fits_who_types_it(monkeypatch: pytest.MonkeyPatch, user: int, typed: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert install_command() == typed


def test_no_install_command_without_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command() == ""


def test_the_packages_are_those_that_make_installs_and_the_readme_names() -> None:
    (listed,) = re.findall(r"^GL_PACKAGES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed.split() == list(PACKAGES)
    assert f"sudo sh -c '{COMMAND}'" in (ROOT / "README.md").read_text()


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

"""A machine without OpenGL: what needs it is refused before it starts, and what needs none is drawn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from teacher.clips.trial import check_drawing
from teacher.envs.gl import PACKAGES, install_command
from teacher.envs.tasks import describe_task

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
    done = subprocess.run(
        [*command, "-L", "4", "-l", "8"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
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

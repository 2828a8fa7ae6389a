"""MuJoCo says nothing to the user, leaves nothing in the working folder, and does without OpenGL."""

import os
import subprocess
import sys
from pathlib import Path

MAKE_CHEETAHS = """
from teacher.envs.tasks import describe_task, make_vector_env
envs = make_vector_env(describe_task("ShortCheetah-v1"), 2, seed=0, workers=2)
envs.reset()
envs.step(envs.action_space.sample())
envs.close()
"""

RAW_CHEETAH = """
import gymnasium
gymnasium.make("HalfCheetah-v5")
"""

UNSTABLE = """
from teacher.envs.make import make_env
env = make_env("ShortHopper-v1", {})
env.reset(seed=0)
env.unwrapped.data.qvel[:] = 1e15
env.step(env.action_space.sample())
"""

NO_OPENGL = """
import ctypes, ctypes.util

def is_opengl(name):
    return name is not None and any(part in str(name) for part in ("GL.", "GL", "OSMesa"))

find, load = ctypes.util.find_library, ctypes.CDLL.__init__

def find_library(name):
    return None if is_opengl(name) else find(name)

def init(self, name, *args, **kwargs):
    if is_opengl(name):
        raise OSError(f"{name}: cannot open shared object file")
    load(self, name, *args, **kwargs)

ctypes.util.find_library, ctypes.CDLL.__init__ = find_library, init
"""

MAKE_HOPPER = """
import os
from teacher.envs.make import make_env
env = make_env("ShortHopper-v1", {})
env.reset(seed=0)
env.step(env.action_space.sample())
print(os.environ["MUJOCO_GL"])
"""


def run(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


def test_a_model_with_a_deprecated_attribute_is_made_silently(tmp_path: Path) -> None:
    result = run(MAKE_CHEETAHS, tmp_path)
    assert result.stdout + result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_same_model_is_noisy_without_us(tmp_path: Path) -> None:
    assert "deprecated" in run(RAW_CHEETAH, tmp_path).stderr + (tmp_path / "MUJOCO_LOG.TXT").read_text()


def test_an_unstable_simulation_is_told_on_the_console_only(tmp_path: Path) -> None:
    result = run(UNSTABLE, tmp_path)
    assert "unstable" in result.stdout + result.stderr
    assert list(tmp_path.iterdir()) == []


def test_physics_need_no_opengl(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_OPENGL)
    for backend in ("egl", "osmesa"):
        result = run(MAKE_HOPPER, tmp_path, PYTHONPATH=str(tmp_path), MUJOCO_GL=backend)
        assert result.stdout.strip() == backend
        assert result.stderr == ""

"""The reward of every task family against its formula, and MuJoCo, which says nothing to the user."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from teacher.envs.families import FAMILIES
from teacher.envs.make import make_env
from tests.waiting import completed

Array = NDArray[np.float64]
STEPS = 150

# MuJoCo's bodies are where its integrator last looked, within a step of less than this from the final state.
INTEGRATOR_METRES = 0.01


class State:
    """Hold positions, velocities and points of the body after a step."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        physics: Any = env.unwrapped
        self.qpos: Array = physics.data.qpos.copy()
        self.qvel: Array = physics.data.qvel.copy()
        self.bodies = {
            name: physics.data.body(name).xpos.copy()
            for name in ("torso", "fingertip", "target")
            if name in str(physics.model.names, "ascii").split("\0")
        }
        self.sites: Array = physics.data.site_xpos.copy()
        masses: Array = physics.model.body_mass
        self.centre_of_mass: Array = masses @ physics.data.xipos / masses.sum()
        self.dt = float(physics.model.opt.timestep * physics.frame_skip)


def velocity(before: State, after: State) -> float:
    return float(after.qpos[0] - before.qpos[0]) / after.dt


def reacher(before: State, after: State) -> float:
    return -float(np.linalg.norm(after.bodies["fingertip"] - after.bodies["target"]))


def hopper(before: State, after: State) -> float:
    return float(velocity(before, after) + 1 + (after.qpos[1] - 1))


def walker(before: State, after: State) -> float:
    return float(velocity(before, after) + 1 + (after.qpos[1] - 2))


def ant(before: State, after: State) -> float:
    moved = after.bodies["torso"][0] - before.bodies["torso"][0]
    return float(moved / after.dt + (after.qpos[2] - 1.2))


def humanoid(before: State, after: State) -> float:
    moved = after.centre_of_mass[0] - before.centre_of_mass[0]
    return float(1.25 * moved / after.dt + 5 * (after.qpos[2] - 1))


def pendulum(before: State, after: State) -> float:
    return float(1 - after.qpos[1] ** 2)


def double_pendulum(before: State, after: State) -> float:
    x, _, y = after.sites[0]
    first, second = after.qvel[1:3]
    penalty = 0.01 * x**2 + (y - 2) ** 2 + 0.001 * first**2 + 0.005 * second**2
    return float(10 - penalty + 10 * (y - 1))


FORMULAS: dict[str, Callable[[State, State], float]] = {
    "Reacher": reacher,
    "Hopper": hopper,
    "Walker": walker,
    "Cheetah": velocity,
    "Swimmer": velocity,
    "Ant": ant,
    "Humanoid": humanoid,
    "Pendulum": pendulum,
    "DoublePendulum": double_pendulum,
}


def random_steps(family: str, steps: int = STEPS) -> list[tuple[State, State, float]]:
    """State before, state after and reward of each step of one episode of random actions."""
    result = []
    with make_env(f"teacher/{family}-v1", {}) as env:
        env.reset(seed=3)
        env.action_space.seed(3)
        before = State(env)
        for _ in range(min(steps, FAMILIES[family].horizon)):
            _, reward, terminated, _, _ = env.step(env.action_space.sample())
            assert not terminated
            after = State(env)
            result.append((before, after, float(reward)))
            before = after
    return result


def test_every_family_has_a_formula() -> None:
    assert FORMULAS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FORMULAS)
def test_reward_is_the_formula_at_every_step(family: str) -> None:
    for before, after, reward in random_steps(family):
        assert reward == pytest.approx(FORMULAS[family](before, after), abs=1e-9)


UNHEALTHY: dict[str, Callable[[State], bool]] = {
    "Hopper": lambda state: state.qpos[1] < 0.7,
    "Walker": lambda state: state.qpos[1] < 0.8,
    "Humanoid": lambda state: state.qpos[2] < 1.0,
    "Pendulum": lambda state: abs(state.qpos[1]) > 0.2,
    "DoublePendulum": lambda state: state.sites[0][2] < 1.0,
}


@pytest.mark.parametrize("family", UNHEALTHY)
def test_the_formula_is_tested_where_gymnasium_would_end_the_episode(family: str) -> None:
    assert any(UNHEALTHY[family](after) for _, after, _ in random_steps(family))


def test_ant_goes_on_upside_down() -> None:
    with make_env("teacher/Ant-v1", {}) as env:
        env.reset(seed=0)
        physics: Any = env.unwrapped
        physics.data.qpos[2] = 1.5  # above what Gymnasium calls healthy
        before = State(env)
        _, reward, terminated, _, _ = env.step(np.zeros(8, np.float32))
        assert physics.data.qpos[2] > 1.0
        assert not terminated
        assert float(reward) == pytest.approx(ant(before, State(env)), abs=1e-9)


def test_bodies_are_where_the_joint_positions_say() -> None:
    for _, after, _ in random_steps("Reacher"):
        first, second = after.qpos[0], after.qpos[0] + after.qpos[1]
        fingertip = 0.1 * np.array([np.cos(first), np.sin(first)])
        fingertip += 0.11 * np.array([np.cos(second), np.sin(second)])
        assert after.bodies["fingertip"][:2] == pytest.approx(fingertip, abs=INTEGRATOR_METRES)
        assert after.bodies["target"][:2] == pytest.approx(after.qpos[2:4], abs=INTEGRATOR_METRES)
    for _, after, _ in random_steps("DoublePendulum"):
        first, second = after.qpos[1], after.qpos[1] + after.qpos[2]
        tip = [
            after.qpos[0] + 0.6 * (np.sin(first) + np.sin(second)),
            0,
            0.6 * (np.cos(first) + np.cos(second)),
        ]
        assert after.sites[0] == pytest.approx(tip, abs=INTEGRATOR_METRES)
    for _, after, _ in random_steps("Ant"):
        assert after.bodies["torso"] == pytest.approx(after.qpos[:3], abs=INTEGRATOR_METRES)


def test_humanoid_centre_of_mass_follows_from_the_joint_positions() -> None:
    import mujoco

    with make_env("teacher/Humanoid-v1", {}) as env:
        physics: Any = env.unwrapped
        for _, after, _ in random_steps("Humanoid", 50):
            data = mujoco.MjData(physics.model)
            data.qpos[:] = after.qpos
            mujoco.mj_forward(physics.model, data)
            expected = data.subtree_com[0]
            assert after.centre_of_mass == pytest.approx(expected, abs=INTEGRATOR_METRES)


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
    return completed(
        [sys.executable, "-W", "always", "-c", program],
        cwd=folder,
        env={**os.environ, **environment},
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

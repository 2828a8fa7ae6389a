"""Share checks of all suites: a recorded segment, an outdated replay, a process without OpenGL."""

import dataclasses
import os
import subprocess
import sys

import pytest

from teacher.clips.render import ClipSpec, frames_of
from teacher.data.segments import Segment, slice_of
from teacher.envs.recipe import library_versions
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.errors import ReplayMismatchError


def recorded(env_id: str, steps: int = 60, workers: int = 1) -> Segment:
    """Return the last 20 steps of random behavior in the second of two environments."""
    envs = make_vector_env(describe_task(env_id), 2, seed=3, workers=workers)
    envs.action_space.seed(4)
    envs.reset()
    for _ in range(steps):
        envs.step(envs.action_space.sample())
    envs.close()
    return slice_of(envs.drain()[1], steps - 20, steps)


def assert_other_version_is_refused(env_id: str, package: str) -> None:
    """Check that a clip recorded with another version of a package is not rendered."""
    spec = ClipSpec.of(recorded(env_id))
    older = dataclasses.replace(spec.recipe, versions={**library_versions(), package: "1.0.0"})
    with pytest.raises(ReplayMismatchError, match=f"other versions; pip install {package}==1.0"):
        list(frames_of(dataclasses.replace(spec, recipe=older)))


def horizon_found_with(env_id: str, mujoco_gl: str) -> tuple[int, bytes]:
    """Describe a task in a process with this ``MUJOCO_GL``; return its horizon and what was printed."""
    program = f"from teacher.envs.tasks import describe_task; print(describe_task({env_id!r}).horizon)"
    environment = {**os.environ, "MUJOCO_GL": mujoco_gl}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return int(done.stdout), done.stderr

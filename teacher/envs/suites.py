"""IDs of DMControl and Meta-World tasks, such as ``dm_control/walker-walk`` and ``metaworld/reach-v3``.

Both suites need a package that RL-Teacher does not install by default. Tasks are registered with Gymnasium
when they are first asked for, so that no list of tasks has to be kept here.
"""

import difflib
import importlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import gymnasium as gym

from teacher.errors import EnvironmentUnsuitableError, ReplayMismatchError, one_line


@dataclass(frozen=True)
class Suite:
    """A suite of tasks.

    Attributes:
        pattern: matches the IDs of its tasks; its named groups are keyword arguments of the entry point.
        distribution: package that contains the tasks; recipes record its version.
        extra: extra of RL-Teacher that installs the package with a version of MuJoCo that it supports.
    """

    pattern: re.Pattern[str]
    version: str
    entry_point: str
    horizon: int
    distribution: str
    extra: str
    example: str


SUITES: Mapping[str, Suite] = {
    "dm_control": Suite(
        # Shimmy's compatibility-env-v0 wraps an environment object instead of naming a task.
        re.compile(r"(?:shimmy:)?dm_control/(?!compatibility-)(?P<domain>\w+)-(?P<task>\w+?)(?:-v0)?"),
        "v0",
        "teacher.envs.dm_control:ControlTask",
        1000,
        "dm-control",
        "dmc",
        "dm_control/walker-walk",
    ),
    "metaworld": Suite(
        re.compile(r"metaworld/(?P<task>[a-z-]+?)(?:-v3)?"),
        "v3",
        "teacher.envs.metaworld:ManipulationTask",
        500,
        "metaworld",
        "metaworld",
        "metaworld/button-press",
    ),
}
"""Suites, keyed by the first part of their IDs, which is also the module that contains the tasks."""


def register(env_id: str, entry_point: str, horizon: int, **kwargs: Any) -> None:
    """Register an environment with Gymnasium, unless its ID is registered already."""
    if env_id not in gym.registry:
        gym.register(env_id, entry_point, max_episode_steps=horizon, disable_env_checker=True, kwargs=kwargs)


def register_suite_task(name: str) -> str | None:
    """Register a suite's task with Gymnasium and return its ID; return None if no suite has such IDs.

    If another package has already registered the ID, its environment is kept.

    Args:
        name: ID with or without its version, such as ``dm_control/walker-walk``; for DMControl, also with
            the prefix ``shimmy:``.
    """
    for namespace, suite in SUITES.items():
        if match := suite.pattern.fullmatch(name):
            parts = match.groupdict()
            env_id = f"{namespace}/{'-'.join(parts.values())}-{suite.version}"
            register(env_id, suite.entry_point, suite.horizon, **parts)
            return env_id
    return None


def import_suite(module: str) -> ModuleType:
    """Import a suite's package.

    Args:
        module: key of :data:`SUITES`, or a submodule, such as ``dm_control.suite``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dm_control tries GLFW first, which warns without a display
            return importlib.import_module(module)
    except Exception as error:  # dm_control fails on MuJoCo 4 with various errors
        suite = SUITES[module.partition(".")[0]]
        raise EnvironmentUnsuitableError(
            f"{suite.distribution} can't be imported with mujoco {metadata.version('mujoco')}: "
            f"{one_line(error)}; in an environment of its own: pip install 'rl-teacher[{suite.extra}]'"
        ) from error


def close_tasks(namespace: str, name: str) -> list[str]:
    """Return the IDs of a suite's tasks that are most similar to a name; none if the suite isn't installed.

    Args:
        name: ID that no suite has, such as ``dm_control/ball-in-cup-catch``.
    """
    module = SUITES[namespace].entry_point.partition(":")[0]
    try:
        known = {_plain(one): one for one in importlib.import_module(module).task_names()}
    except EnvironmentUnsuitableError:
        return []
    wanted = _plain(re.sub(r"-v\d+$", "", name.partition("/")[2]))
    close = [wanted] if wanted in known else difflib.get_close_matches(wanted, known, n=3)
    return [f"{namespace}/{known[one]}" for one in close]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def require_task(title: str, task: str, known: Sequence[str]) -> None:
    """Check that a suite has a task."""
    if task not in known:
        close = difflib.get_close_matches(task, known, n=3, cutoff=0.0)
        raise EnvironmentUnsuitableError(f"{title} has no task {task}; did you mean {', '.join(close)}?")


def require_recorded_versions(env_id: str, recorded: Mapping[str, str], installed: Mapping[str, str]) -> None:
    """Check that a suite's episode is replayed with the versions that it was recorded with.

    Environments outside of the suites are not checked.
    """
    suite = SUITES.get(env_id.rpartition(":")[2].partition("/")[0])
    if suite is None:
        return
    names = ("mujoco", suite.distribution)
    if wrong := [name for name in names if name in recorded and recorded[name] != installed.get(name)]:
        has = ", ".join(f"{name} {installed.get(name, 'missing')}" for name in wrong)
        needs = " ".join(f"{name}=={recorded[name]}" for name in wrong)
        raise ReplayMismatchError(
            f"can't replay an episode of {env_id}: found {has}, but it was recorded with other versions; "
            f"pip install {needs}"
        )

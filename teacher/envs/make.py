"""Construction of environments for training, replay and rendering, without MuJoCo's console messages."""

import contextlib
import dataclasses
import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from teacher.envs.families import resolve_env_id
from teacher.envs.horizon import KWARG as FIXED
from teacher.envs.horizon import FixedHorizon
from teacher.envs.text import TextFrames, renders_only_text
from teacher.envs.transform import KWARG, TransformedObservations

_CONSOLE = threading.RLock()
_OF_VECTORS = ("max_episode_steps", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Keyword arguments that ``gymnasium.make_vec`` adds to the environment's own."""
_LEFT_OUT = ("gymnasium.wrappers.rendering:", "stable_baselines3.common.monitor:")
"""Modules of wrappers that only render or record; trial episodes don't need them."""


def make_env(
    env_id: str, kwargs: Mapping[str, Any], render_mode: str | None = None, **rendering: Any
) -> gym.Env[Any, Any]:
    """Make an environment with ``gymnasium.make``, without MuJoCo's console messages and log file.

    Args:
        env_id: Gymnasium ID, old task name, or ``module:Env-v0``.
        kwargs: arguments of ``gymnasium.make``, such as ``max_episode_steps``, and two more:
            ``fixed_horizon``, passed to :class:`FixedHorizon` as ``filling``, and ``obs_transform``, passed
            to :class:`TransformedObservations` as ``name``. Recipes store all of them.
        render_mode: as in ``gymnasium.make``; with ``rgb_array``, an environment that renders only text is
            drawn by :class:`~teacher.envs.text.TextFrames`.
        rendering: further arguments that only affect rendering, such as ``width``, ``height`` and
            ``camera_name``. Recipes don't store them.
    """
    if render_mode is not None:
        rendering["render_mode"] = render_mode
    arguments = {**kwargs, **rendering}
    transform, filling = arguments.pop(KWARG, None), arguments.pop(FIXED, None)
    # Gymnasium's checker would print many warnings and slow down each step.
    with _quiet_mujoco():
        env = _made(resolve_env_id(env_id), arguments)
    env = env if filling is None else FixedHorizon(env, filling)
    return env if transform is None else TransformedObservations(env, transform)


def _made(env_id: str, arguments: dict[str, Any]) -> gym.Env[Any, Any]:
    is_text = arguments.get("render_mode") == "rgb_array" and renders_only_text(_render_modes(env_id))
    if is_text:
        arguments = {**arguments, "render_mode": "ansi"}
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    return TextFrames(env) if is_text else env


def _render_modes(env_id: str) -> Any:
    """Return the render modes in the metadata of an environment's class; None if there are none."""
    with contextlib.suppress(Exception):  # importing it may raise anything, which gymnasium.make reports
        module, _, name = env_id.rpartition(":")
        if module:
            importlib.import_module(module)
        entry: Any = gym.spec(name).entry_point
        kind: Any = load_env_creator(entry) if isinstance(entry, str) else entry
        return kind.metadata.get("render_modes")
    return None


def make_again(env: Any) -> gym.Env[Any, Any] | None:
    """Make another instance of an environment for trial episodes.

    If ``env`` is a vector environment, make another instance of its first sub-environment. The instance opens
    no window and records no videos. Return None if making it fails or the spec is incomplete, for example
    because a wrapper does not record its arguments.
    """
    try:
        spec = env.spec
        if spec is None:
            spec = next((one.spec for one in getattr(env.unwrapped, "envs", ())), None)
        if spec is None or spec.kwargs.get("wrappers"):
            return None
        quiet = tuple(one for one in spec.additional_wrappers if not one.entry_point.startswith(_LEFT_OUT))
        if any(one.kwargs is None for one in quiet):  # a wrapper that does not record its arguments
            return None
        limit = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
        kwargs = {name: value for name, value in spec.kwargs.items() if name not in _OF_VECTORS}
        if kwargs.get("render_mode") == "human":
            del kwargs["render_mode"]
        with _quiet_mujoco():
            return gym.make(
                dataclasses.replace(spec, kwargs=kwargs, max_episode_steps=limit, additional_wrappers=quiet),
                disable_env_checker=True,
            )
    except (Exception, SystemExit):  # a constructor may raise anything
        return None


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Turn off MuJoCo's console messages within the ``with`` block, and its log file permanently.

    Compiling a model prints advice for the model's author, for example about deprecated attributes. Messages
    after the block, for example about unstable simulations, still reach the console.
    """
    mujoco = _import_mujoco()
    if mujoco is None or not hasattr(mujoco, "MjLogConfig"):  # before MuJoCo 3.5, nothing can be turned off
        yield
        return
    with _CONSOLE:  # the log configuration is process-wide
        log = mujoco.MjLogConfig.get()
        console = log.logto_console
        log.logto_file, log.logto_console = False, False
        log.set()
        try:
            yield
        finally:
            log.logto_console = console
            log.set()


def _import_mujoco() -> Any:
    """Import and return the mujoco module; return None if it is not installed.

    On import, mujoco loads the OpenGL library selected by ``MUJOCO_GL``, and fails if the library is missing.
    Physics does not need OpenGL, so the import is then retried with OpenGL disabled; an error is raised only
    later, if the environment is rendered.
    """
    try:
        import mujoco  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    except (ImportError, AttributeError, OSError, RuntimeError):
        if "MUJOCO_GL" not in os.environ:
            raise
        with without_opengl():
            import mujoco  # noqa: PLC0415
    return mujoco


@contextlib.contextmanager
def without_opengl() -> Iterator[None]:
    """Set ``MUJOCO_GL`` to ``disable`` within the ``with`` block, to import a package for its physics."""
    chosen = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disable"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]
        if chosen is not None:
            os.environ["MUJOCO_GL"] = chosen

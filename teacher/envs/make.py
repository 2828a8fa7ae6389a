"""Construction of environments, the same for training, replay and rendering, without MuJoCo's notices."""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from teacher.envs.families import resolve_env_id
from teacher.envs.horizon import KWARG as FIXED
from teacher.envs.horizon import FixedHorizon
from teacher.envs.transform import KWARG, TransformedObservations

_CONSOLE = threading.RLock()
_OF_VECTORS = ("max_episode_steps", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Names that ``gymnasium.make_vec`` adds to an environment's arguments."""
_RENDERING = "gymnasium.wrappers.rendering:"


def make_env(
    env_id: str, kwargs: Mapping[str, Any], render_mode: str | None = None, **rendering: Any
) -> gym.Env[Any, Any]:
    """Call ``gymnasium.make`` without MuJoCo's notices about the model and without its log file.

    Args:
        env_id: a Gymnasium id, an old name, or ``module:Env-v0``.
        kwargs: arguments of ``gymnasium.make``, including ``max_episode_steps``, plus ``fixed_horizon`` (see
            :class:`FixedHorizon`) and ``obs_transform`` (see :class:`TransformedObservations`); stored in
            recipes.
        render_mode: as in Gymnasium.
        rendering: further arguments that affect only frames, such as ``width``, ``height`` and
            ``camera_name``.
    """
    if render_mode is not None:
        rendering["render_mode"] = render_mode
    arguments = {**kwargs, **rendering}
    transform, filling = arguments.pop(KWARG, None), arguments.pop(FIXED, None)
    # The checker would warn about everything it dislikes, and slow down each step.
    with _quiet_mujoco():
        env = gym.make(resolve_env_id(env_id), disable_env_checker=True, **arguments)
    env = env if filling is None else FixedHorizon(env, filling)
    return env if transform is None else TransformedObservations(env, transform)


def make_again(env: Any) -> gym.Env[Any, Any] | None:
    """Make a second instance of an environment, or of those in a vector environment, to try it out.

    It opens no window, writes no videos, and calls no user function, which might overwrite files.
    Return None if no spec describes completely how it is made.
    """
    try:
        spec = env.spec
        if spec is None:
            spec = next((one.spec for one in getattr(env.unwrapped, "envs", ())), None)
        if spec is None or spec.kwargs.get("wrappers"):
            return None
        if any(
            one.kwargs is None for one in spec.additional_wrappers
        ):  # wrappers that do not record their arguments
            return None
        limit = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
        kwargs = {name: value for name, value in spec.kwargs.items() if name not in _OF_VECTORS}
        if kwargs.get("render_mode") == "human":
            del kwargs["render_mode"]
        quiet = tuple(one for one in spec.additional_wrappers if not one.entry_point.startswith(_RENDERING))
        with _quiet_mujoco():
            return gym.make(
                dataclasses.replace(spec, kwargs=kwargs, max_episode_steps=limit, additional_wrappers=quiet),
                disable_env_checker=True,
            )
    except (Exception, SystemExit):  # a constructor may raise anything
        return None


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Silence MuJoCo's console inside the block, and its log file permanently.

    Compiling a model prints advice for its author, such as about deprecated attributes. Later messages, such
    as about unstable simulations, still reach the console.
    """
    mujoco = _import_mujoco()
    if mujoco is None:
        yield
        return
    with _CONSOLE:  # the setting is process-wide
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
    """Return the mujoco module, or None if it is not installed.

    It loads the OpenGL library set in ``MUJOCO_GL`` and fails if that is missing, although physics does not
    need it. Only rendering does, and reports it then.
    """
    try:
        import mujoco  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    except (ImportError, AttributeError, OSError, RuntimeError):
        chosen = os.environ.get("MUJOCO_GL")
        if chosen is None:
            raise
        os.environ["MUJOCO_GL"] = "disable"
        try:
            import mujoco  # noqa: PLC0415
        finally:
            os.environ["MUJOCO_GL"] = chosen
    return mujoco

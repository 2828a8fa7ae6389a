"""Find out whether an environment draws itself in a way of its own.

The quick scene of :mod:`teacher.clips.scene` stands in for Gymnasium's MuJoCo viewer and for nothing else: a
labeler must see what the environment's own ``render()`` shows.
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

_HANDED_ON = {gym.Wrapper.render, OrderEnforcing.render, PassiveEnvChecker.render}
"""What a wrapper does that shows what is below it."""
_FREE_CAMERA = -1
_PAINT = ("geom_rgba", "mat_rgba", "site_rgba", "tex_data", "cam_pos", "cam_quat")
"""Of a model: what code can repaint after it was loaded."""


def draws_as_gymnasium(env: gym.Env[Any, Any]) -> bool:
    """Return whether ``render()`` of a made environment is Gymnasium's MuJoCo viewer with its own settings.

    It is not where a wrapper or a subclass overrides ``render()``, where the camera, size, model file,
    visual options or renderer are not the defaults of Gymnasium's class, or where the model was repainted.
    """
    while isinstance(env, gym.Wrapper):
        if type(env).render not in _HANDED_ON or "render" in vars(env):
            return False
        env = env.env
    return hasattr(env, "mujoco_renderer") and _is_plain(env)


def _is_plain(bare: Any) -> bool:
    # Not at the top: MuJoCo is imported where there is such an environment.
    import mujoco  # noqa: PLC0415
    from gymnasium.envs.mujoco import mujoco_env, mujoco_rendering  # noqa: PLC0415

    package = mujoco_env.__name__.rpartition(".")[0] + "."
    own = next((kind for kind in type(bare).__mro__ if kind.__module__.startswith(package)), None)
    renderer = bare.mujoco_renderer
    if own is None or own is mujoco_env.MujocoEnv or type(renderer) is not mujoco_rendering.MujocoRenderer:
        return False
    return bool(
        type(bare).render is mujoco_env.MujocoEnv.render
        and "render" not in {**vars(bare), **vars(renderer)}
        and renderer.width == renderer.height == mujoco_env.DEFAULT_SIZE
        and renderer.camera_id == _FREE_CAMERA
        and not renderer._vopt
        and renderer.default_cam_config is _camera_of(own)
        and Path(bare.fullpath).parent == Path(mujoco_env.__file__).parent / "assets"
        and _is_unpainted(bare, mujoco)
    )


def _camera_of(kind: type) -> Any:
    """Return the camera settings that Gymnasium's class has by default: an argument's, or its module's."""
    argument = inspect.signature(kind).parameters.get("default_camera_config")
    constants = vars(sys.modules[kind.__module__])
    return constants.get("DEFAULT_CAMERA_CONFIG") if argument is None else argument.default


def _is_unpainted(bare: Any, mujoco: Any) -> bool:
    fresh = mujoco.MjModel.from_xml_path(bare.fullpath)
    return all(np.array_equal(getattr(bare.model, name), getattr(fresh, name)) for name in _PAINT)

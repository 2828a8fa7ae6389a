"""Detection of environments that customize how Gymnasium renders MuJoCo.

Labelers must see what the environment's own ``render()`` shows. So the fast renderer in
:mod:`teacher.clips.scene` may replace only Gymnasium's unmodified MuJoCo viewer.
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

_PASS_THROUGH = {gym.Wrapper.render, OrderEnforcing.render, PassiveEnvChecker.render}
"""``render`` methods of wrappers that only call the wrapped environment's ``render``."""
_FREE_CAMERA = -1
_APPEARANCE = ("geom_rgba", "mat_rgba", "site_rgba", "tex_data", "cam_pos", "cam_quat")
"""Attributes of a MuJoCo model's appearance that an environment may change after loading the model."""


def draws_as_gymnasium(env: gym.Env[Any, Any]) -> bool:
    """Return True if ``env.render()`` uses Gymnasium's MuJoCo viewer with default settings.

    Return False if a wrapper or subclass overrides ``render()``, if the camera, frame size, model file,
    visual options or renderer differ from the defaults of Gymnasium's class, or if the model's colors,
    textures or cameras were changed after loading.
    """
    while isinstance(env, gym.Wrapper):
        if type(env).render not in _PASS_THROUGH or "render" in vars(env):
            return False
        env = env.env
    return hasattr(env, "mujoco_renderer") and _is_plain(env)


def _is_plain(bare: Any) -> bool:
    # Not at the top of the module, so that MuJoCo is imported only for MuJoCo environments.
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
        and _has_original_appearance(bare, mujoco)
    )


def _camera_of(kind: type) -> Any:
    """Return a Gymnasium environment class's default camera settings, from its signature or its module."""
    argument = inspect.signature(kind).parameters.get("default_camera_config")
    constants = vars(sys.modules[kind.__module__])
    return constants.get("DEFAULT_CAMERA_CONFIG") if argument is None else argument.default


def _has_original_appearance(bare: Any, mujoco: Any) -> bool:
    fresh = mujoco.MjModel.from_xml_path(bare.fullpath)
    return all(np.array_equal(getattr(bare.model, name), getattr(fresh, name)) for name in _APPEARANCE)

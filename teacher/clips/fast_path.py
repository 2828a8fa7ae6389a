"""Proof that the fast MuJoCo renderer may draw an environment's clips.

Labelers must see what the environment's own ``render()`` shows. So
:class:`~teacher.clips.scene.MujocoScene` is used only if the environment is an unmodified one of Gymnasium's,
only known wrappers are around it, ``render()`` returns the same frames as an unmodified copy of the
environment, and the model is still the compiled one.
"""

import functools
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    ClipAction,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    RescaleAction,
    TimeLimit,
    TransformObservation,
)
from numpy.typing import NDArray

from teacher.envs.capture import draw
from teacher.envs.families import FamilyRules
from teacher.envs.horizon import FixedHorizon
from teacher.envs.transform import TransformedObservations

_WRAPPERS = {
    *(ClipAction, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, RescaleAction, TimeLimit),
    *(FamilyRules, FixedHorizon, TransformObservation, TransformedObservations),
}
"""Wrappers that change neither the model nor the frames."""
_PACKAGE = "gymnasium.envs.mujoco."
_RENDERING = _PACKAGE + "mujoco_rendering"
_SETTINGS = ("width", "height", "max_geom", "camera_id", "_vopt", "default_cam_config")
_TOLERANCE = 2  # of 255, for rounding by the graphics driver
_equal: set[tuple[type, ...]] = set()  # stacks of classes whose frames were compared in this process

Frame = NDArray[np.uint8]


def is_mujoco(env: gym.Env[Any, Any]) -> bool:
    """Return True if an environment renders with Gymnasium's MuJoCo renderer or one like it."""
    return hasattr(env.unwrapped, "mujoco_renderer")


class FastPath:
    """Decision whether the fast renderer may draw one environment.

    Args:
        env: a new MuJoCo environment, which has rendered nothing yet.

    Attributes:
        why_not: the reason to call ``render()`` instead; empty if there is none so far.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env = env
        self._bare: Any = env.unwrapped
        self._classes = tuple(map(type, _stack(env)))
        self._copy: Any = None
        self._model = np.zeros(0, np.uint8)
        self.why_not = _why_modified(env)
        if not self.why_not:
            kind = getattr(_fresh(type(self._bare).__module__), type(self._bare).__name__)
            self._copy = kind(render_mode="rgb_array")
            self._model = _saved(self._copy.model)
            self.why_not = self._why_other_settings()

    @property
    def needs_comparison(self) -> bool:
        """Return True if frames of such an environment have not been compared in this process."""
        return not self.why_not and self._classes not in _equal

    def compare(self, *, frames: bool, last: bool = False) -> None:
        """Compare the model and, if ``frames`` is set, a frame with those of an unmodified copy.

        Args:
            frames: True to compare the current frame.
            last: True if this was the last comparison; if all were equal, others in this process are skipped.
        """
        if not self.why_not and not self.has_compiled_model():
            self.why_not = "its model was changed after loading"
        if frames and not self.why_not:
            renderer = self._copy.mujoco_renderer
            renderer.data = self._bare.data
            shown, expected = draw(self._env), draw(self._copy)
            if not _is_same_picture(shown, expected):
                self.why_not = "its render() returns other frames than Gymnasium's"
        if last and not self.why_not:
            _equal.add(self._classes)

    def has_compiled_model(self) -> bool:
        """Return True if the model's arrays and options are those of the model file."""
        return np.array_equal(_saved(self._bare.model), self._model)

    def release(self) -> None:
        """Free the OpenGL contexts that were made for the comparison."""
        for env in (self._bare, self._copy):
            if env is not None:
                for viewer in env.mujoco_renderer._viewers.values():
                    viewer.free()
                env.mujoco_renderer._viewers.clear()
                env.mujoco_renderer.viewer = None

    def _why_other_settings(self) -> str:
        own, usual = self._bare.mujoco_renderer, self._copy.mujoco_renderer
        for name in _SETTINGS:
            if not _is_same(getattr(own, name), getattr(usual, name)):
                return f"its renderer has another {name.strip('_')} than Gymnasium's"
        return ""


def _stack(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _why_modified(env: gym.Env[Any, Any]) -> str:
    """Return which part of an environment is not an unmodified, known class; empty if there is none."""
    *wrappers, bare = _stack(env)
    renderer = bare.mujoco_renderer  # type: ignore[attr-defined]
    own = {kind.__module__ for kind in type(bare).__mro__ if kind.__module__.startswith(_PACKAGE)}
    kind = type(bare)
    is_own = kind.__module__ in own and getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
    if not is_own:
        return f"{kind.__name__} is not an environment of Gymnasium's"
    if strange := next((one for one in wrappers if type(one) not in _WRAPPERS), None):
        return f"the wrapper {type(strange).__name__} might change its frames"
    for part in (*wrappers, bare, renderer):
        if patched := next((name for name in vars(part) if callable(getattr(type(part), name, None))), None):
            return f"{type(part).__name__}.{patched} was replaced"
    if changed := next(filter(None, map(_changed, sorted({*own, _RENDERING}))), ""):
        return f"{changed} was replaced"
    is_usual = type(renderer) is sys.modules[_RENDERING].MujocoRenderer and not renderer._viewers
    if not is_usual or renderer.model is not bare.model or renderer.data is not bare.data:  # type: ignore[attr-defined]
        return "it has a renderer of its own"
    return ""


def _changed(module: str) -> str:
    """Return the name of a class or function that differs from the module's file; empty if there is none."""
    loaded, fresh = vars(sys.modules[module]), vars(_fresh(module))
    for name, value in fresh.items():
        if getattr(value, "__module__", None) == module and _codes(loaded.get(name)) != _codes(value):
            return name
    return ""


def _codes(value: Any) -> dict[str, Any]:
    members = vars(value) if isinstance(value, type) else {"": value}
    functions = {name: getattr(member, "fget", None) or member for name, member in members.items()}
    return {name: code for name, one in functions.items() if (code := getattr(one, "__code__", None))}


@functools.cache
def _fresh(module: str) -> ModuleType:
    """Import a module once more, as it is in its file; changes to the imported one don't affect it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module named {module}")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


def _saved(model: Any) -> NDArray[np.uint8]:
    # Not at the top of the module, so that MuJoCo is imported only for MuJoCo environments.
    import mujoco  # noqa: PLC0415

    saved = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, saved)
    return saved


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other))


def _is_same_picture(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return bool((np.abs(one.astype(np.int16) - other) <= _TOLERANCE).all())

"""Frame capture while environments are stepped, for episodes that can't be replayed."""

import io
import os
from typing import Any, SupportsFloat

import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from PIL import Image

from teacher.envs.episodes import FRAME_KEY, SeededResets
from teacher.envs.gl import has_screen, select_gl, why_no_screen
from teacher.errors import EnvironmentUnsuitableError, RenderError, describe_exception

LONGER_SIDE = 400
"""Maximum width and height of a captured frame, in pixels; larger frames are scaled down."""
_QUALITY = 90
_ROUNDING = 1e-3  # less than one of 255 levels


def prepare_drawing() -> None:
    """Configure pygame for headless rendering.

    Gymnasium's classic control and Box2D environments render with pygame.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def draw(env: Any) -> Any:
    """Return ``env.render()``, rendered in the environment's own OpenGL context.

    Gymnasium's MuJoCo renderer draws in whichever context is current. On a machine without a display, it also
    needs ``MUJOCO_GL``.

    Raises:
        RenderError: the environment needs OpenGL, and no backend works on this machine.
    """
    if type(env) is SyncVectorEnv:
        return tuple(map(draw, env.envs))
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        try:
            select_gl()
        except RenderError:
            if not has_screen():
                raise
        if os.environ.get("MUJOCO_GL") == "cgl":  # unknown to Gymnasium, which tries GLFW if this is unset
            del os.environ["MUJOCO_GL"]
        viewer: Any = getattr(renderer, "viewer", None)
        if hasattr(viewer, "make_context_current"):
            viewer.make_context_current()
    return env.render()


def frame_of(env: Any, name: str) -> NDArray[np.uint8]:
    """Render an environment and return the frame, ``(height, width, 3)``.

    Raises:
        RenderError: ``render()`` returned no image.
    """
    try:
        return as_frame(draw(env), name)
    except RenderError as error:
        modes = _modes(env)
        raise error if "rgb_array" in modes else RenderError(f"{error}; {_told_modes(modes)}") from error


def _modes(env: Any) -> list[str]:
    return list(map(str, (env.metadata or {}).get("render_modes") or ()))


def _told_modes(modes: list[str]) -> str:
    return (
        f"its metadata['render_modes'] is {modes}: add 'rgb_array', in which render() returns an image, or "
        "'ansi', in which it returns text"
    )


class CapturedResets(SeededResets):
    """Wrapper that seeds every reset and returns a JPEG frame in ``info["frame"]`` from each step.

    Args:
        seeds: iterator of seeds for resets that are called without one.

    Raises:
        EnvironmentUnsuitableError: from :meth:`step`, if the environment can't render a frame.
    """

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment, render it, and return the JPEG frame as ``info["frame"]``."""
        *outcome, info = super().step(action)
        return (*outcome, {**info, FRAME_KEY: self._picture()})

    def _picture(self) -> bytes:
        try:
            modes = _modes(self.env)
            if modes and "rgb_array" not in modes:  # its render() might print to the terminal
                raise RenderError(_told_modes(modes))
            picture = frame_of(self.env, self._name)
        except Exception as error:  # an environment may raise anything
            own = str(error) if isinstance(error, RenderError) else describe_exception(error)
            raise EnvironmentUnsuitableError(
                f"--capture_frames: {self._name} can't be rendered: {why_no_screen() or own}"
            ) from error
        return jpeg(picture, self._name)


def as_frame(picture: Any, name: str = "the environment") -> NDArray[np.uint8]:
    """Convert the return value of an environment's ``render()`` to a uint8 image ``(height, width, 3)``.

    Integers must be in [0, 255]; floats must be in [0, 1], except for rounding errors, and are scaled to
    [0, 255].
    """
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        found = f"shape {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise RenderError(f"{name} rendered {found}; expected an RGB array of shape (height, width, 3)")
    if picture.dtype == np.uint8:
        return picture
    low, high = (float(picture.min()), float(picture.max())) if picture.size else (0.0, 0.0)
    if np.issubdtype(picture.dtype, np.integer) and low >= 0 and high <= 255:
        return picture.astype(np.uint8)
    # The comparison is False for NaN.
    if np.issubdtype(picture.dtype, np.floating) and low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return (picture.clip(0, 1) * 255).round().astype(np.uint8)
    raise RenderError(
        f"{name} rendered {picture.dtype} values from {low:.9g} to {high:.9g}; frames must be uint8, or "
        "floats from 0 to 1"
    )


def jpeg(picture: Any, name: str = "the environment") -> bytes:
    """Encode an RGB image ``(height, width, 3)`` as JPEG, scaled down to at most 400 x 400 pixels."""
    try:
        image = Image.fromarray(as_frame(picture, name))
    except RenderError as error:
        raise EnvironmentUnsuitableError(str(error)) from error
    image.thumbnail((LONGER_SIDE, LONGER_SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return file.getvalue()

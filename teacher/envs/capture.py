"""Pictures kept while the environment is stepped, for episodes that cannot be played again."""

import io
import os
import sys
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from teacher.envs.episodes import FRAME_KEY, SeededResets
from teacher.errors import EnvironmentUnsuitableError, RenderError, describe_exception

LONGER_SIDE = 400
"""Pixels; larger pictures are made smaller."""
_QUALITY = 90


def prepare_drawing() -> None:
    """Let pygame, under classic control and Box2D, not look for a screen."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def why_no_screen() -> str | None:
    """Return why ``MUJOCO_GL=glfw`` cannot draw MuJoCo here, and what to do; None where it can."""
    has_screen = sys.platform != "linux" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}
    if os.environ.get("MUJOCO_GL") != "glfw" or has_screen:
        return None
    return (
        "MUJOCO_GL=glfw draws on a screen, and there is none here (DISPLAY is not set); leave MUJOCO_GL "
        "unset, or set it to egl or osmesa"
    )


class CapturedResets(SeededResets):
    """Seeded resets, and a picture after each step as ``info["frame"]``: a JPEG file's bytes.

    Args:
        env: made with render mode ``rgb_array``.
        seeds: see :class:`SeededResets`.

    Raises:
        EnvironmentUnsuitableError: by :meth:`step`, where the environment draws no picture.
    """

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and draw what came of it."""
        *outcome, _ = super().step(action)
        return (*outcome, {FRAME_KEY: self._picture()})

    def _picture(self) -> bytes:
        try:
            picture: Any = self.env.render()
        except Exception as error:  # an environment may raise anything
            raise EnvironmentUnsuitableError(
                f"--capture_frames: {self._name} cannot be drawn: "
                f"{why_no_screen() or describe_exception(error)}"
            ) from error
        return jpeg(picture, self._name)


def as_frame(picture: Any, name: str = "the environment") -> NDArray[np.uint8]:
    """Return what an environment drew as ``(height, width, 3)`` bytes.

    Bytes are taken as they are; floats in [0, 1] are scaled to 0 to 255.

    Args:
        picture: what ``render()`` returned.
        name: of the environment, for the message.

    Raises:
        RenderError: it is no RGB array, or its numbers are neither bytes nor floats in [0, 1].
    """
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        found = f"shape {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise RenderError(
            f"{name} drew {found}; expected an RGB array (height, width, 3) from render_mode rgb_array"
        )
    if picture.dtype == np.uint8:
        return picture
    low, high = (float(picture.min()), float(picture.max())) if picture.size else (0.0, 0.0)
    if np.issubdtype(picture.dtype, np.integer) and low >= 0 and high <= 255:
        return picture.astype(np.uint8)
    if np.issubdtype(picture.dtype, np.floating) and low >= 0 and high <= 1:  # never so where one is NaN
        return (picture * 255).round().astype(np.uint8)
    raise RenderError(
        f"{name} drew {picture.dtype} from {low:g} to {high:g}; expected bytes or floats from 0 to 1"
    )


def jpeg(picture: Any, name: str = "the environment") -> bytes:
    """An RGB picture ``(height, width, 3)`` as a file; small ones, as of Atari, keep every pixel.

    Raises:
        EnvironmentUnsuitableError: it is none, see :func:`as_frame`.
    """
    try:
        image = Image.fromarray(as_frame(picture, name))
    except RenderError as error:
        raise EnvironmentUnsuitableError(str(error)) from error
    image.thumbnail((LONGER_SIDE, LONGER_SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return file.getvalue()

"""Capture of frames during stepping, for episodes that cannot be replayed."""

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
"""Maximum side in pixels; larger frames are scaled down."""
_QUALITY = 90


def prepare_drawing() -> None:
    """Make pygame, used by classic control and Box2D, run without a screen."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def why_no_screen() -> str | None:
    """Return why ``MUJOCO_GL=glfw`` cannot render MuJoCo here, with advice; None if it can."""
    has_screen = sys.platform != "linux" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}
    if os.environ.get("MUJOCO_GL") != "glfw" or has_screen:
        return None
    return (
        "MUJOCO_GL=glfw needs a screen, and there is none here (DISPLAY is not set); leave MUJOCO_GL "
        "unset, or set it to egl or osmesa"
    )


class CapturedResets(SeededResets):
    """Seeded resets, with a frame after each step as ``info["frame"]``: the bytes of a JPEG file.

    Args:
        env: made with render mode ``rgb_array``.
        seeds: see :class:`SeededResets`.

    Raises:
        EnvironmentUnsuitableError: from :meth:`step`, if the environment does not render a frame.
    """

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and render the result as ``info["frame"]``."""
        *outcome, _ = super().step(action)
        return (*outcome, {FRAME_KEY: self._picture()})

    def _picture(self) -> bytes:
        try:
            picture: Any = self.env.render()
        except Exception as error:  # an environment may raise anything
            raise EnvironmentUnsuitableError(
                f"--capture_frames: {self._name} cannot be rendered: "
                f"{why_no_screen() or describe_exception(error)}"
            ) from error
        return jpeg(picture, self._name)


def as_frame(picture: Any, name: str = "the environment") -> NDArray[np.uint8]:
    """Convert the return value of an environment's ``render()`` to a uint8 image ``(height, width, 3)``.

    Integers from 0 to 255 are kept; floats in [0, 1] are scaled to 0 to 255.

    Args:
        picture: the return value of ``render()``.
        name: of the environment, for the error message.

    Raises:
        RenderError: it is not an RGB array, or its values are out of range.
    """
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        found = f"shape {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise RenderError(
            f"{name} rendered {found}; expected an RGB array (height, width, 3) from render_mode rgb_array"
        )
    if picture.dtype == np.uint8:
        return picture
    low, high = (float(picture.min()), float(picture.max())) if picture.size else (0.0, 0.0)
    if np.issubdtype(picture.dtype, np.integer) and low >= 0 and high <= 255:
        return picture.astype(np.uint8)
    if np.issubdtype(picture.dtype, np.floating) and low >= 0 and high <= 1:  # False for NaN
        return (picture * 255).round().astype(np.uint8)
    raise RenderError(
        f"{name} rendered {picture.dtype} from {low:g} to {high:g}; expected uint8, or floats from 0 to 1"
    )


def jpeg(picture: Any, name: str = "the environment") -> bytes:
    """Encode an RGB image ``(height, width, 3)`` as JPEG; small ones, such as Atari's, keep their size.

    Raises:
        EnvironmentUnsuitableError: it is not an image that :func:`as_frame` accepts.
    """
    try:
        image = Image.fromarray(as_frame(picture, name))
    except RenderError as error:
        raise EnvironmentUnsuitableError(str(error)) from error
    image.thumbnail((LONGER_SIDE, LONGER_SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return file.getvalue()

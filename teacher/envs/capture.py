"""Pictures kept while the environment is stepped, for episodes that cannot be played again."""

import io
import os
from typing import Any, SupportsFloat

import numpy as np
from PIL import Image

from teacher.envs.episodes import FRAME_KEY, SeededResets
from teacher.errors import EnvironmentUnsuitableError, described

LONGER_SIDE = 400
"""Pixels; larger pictures are made smaller."""
_QUALITY = 90


def prepare_drawing() -> None:
    """Let pygame, under classic control and Box2D, not look for a screen."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


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
                f"--capture_frames: {self._name} cannot be drawn: {described(error)}"
            ) from error
        return jpeg(picture)


def jpeg(picture: Any) -> bytes:
    """An RGB picture ``(height, width, 3)`` as a file; small ones, as of Atari, keep every pixel.

    Raises:
        EnvironmentUnsuitableError: it is none.
    """
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        found = picture.shape if isinstance(picture, np.ndarray) else type(picture).__name__
        raise EnvironmentUnsuitableError(
            f"expected the environment to draw an RGB array (height, width, 3), got {found}; with its "
            "render_mode rgb_array it should"
        )
    image = Image.fromarray(picture.astype(np.uint8, copy=False))
    image.thumbnail((LONGER_SIDE, LONGER_SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return file.getvalue()

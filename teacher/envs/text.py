"""Frames of environments that render only text, drawn like a terminal."""

import contextlib
import functools
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_CELL = (11, 20)  # width and height of a character in pixels
_FONTS = ("DejaVuSansMono.ttf", "Menlo.ttc")
"""Fonts with more than ASCII, if the system has one of them."""
_WIDE_FONTS = ("NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "PingFang.ttc", "Hiragino Sans GB.ttc")
"""Fonts with Chinese, Japanese and Korean characters, which are two cells wide."""
_FONT_SIZE = 16
_SPARE = (4, 1)  # columns and rows, so that text may grow a little
_DARK, _LIGHT = (16, 18, 22), (230, 232, 235)


class TextFrames(gym.Wrapper[Any, Any, Any, Any]):
    """Draws the text of an environment made with ``render_mode="ansi"`` as an RGB array.

    Colors in ANSI escape codes are kept. All frames of an episode have the size of the first one; longer text
    is scaled down.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        modes = [*(env.metadata.get("render_modes") or ()), "rgb_array"]
        self.metadata = {**env.metadata, "render_modes": modes}
        self._size: tuple[int, int] | None = None

    @property
    def render_mode(self) -> str:  # type: ignore[override]
        """Return ``rgb_array``."""
        return "rgb_array"

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the next frame determines the episode's frame size."""
        self._size = None
        return super().reset(**settings)

    def render(self) -> Any:
        """Return the text as an image ``(height, width, 3)``; return anything but text unchanged."""
        text: Any = self.env.render()
        if not isinstance(text, str):
            return text
        picture = _drawn(text)
        if self._size is None:
            self._size = picture.size
        if picture.size != self._size:
            picture.thumbnail(self._size)
            canvas = Image.new("RGB", self._size, _DARK)
            canvas.paste(picture)
            picture = canvas
        frame: NDArray[np.uint8] = np.asarray(picture)
        return frame


def renders_only_text(modes: Any) -> bool:
    """Return True if render modes from an environment's metadata include ``ansi`` but not ``rgb_array``."""
    return "ansi" in (modes or ()) and "rgb_array" not in modes


@functools.cache
def _font(names: tuple[str, ...]) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    for name in names:
        with contextlib.suppress(OSError):
            return ImageFont.truetype(name, _FONT_SIZE)
    return ImageFont.load_default(_FONT_SIZE)


def _drawn(text: str) -> Image.Image:
    lines = Text.from_ansi(text.rstrip("\n")).split(allow_blank=True)
    columns, rows = max((line.cell_len for line in lines), default=0) + _SPARE[0], len(lines) + _SPARE[1]
    picture = Image.new("RGB", (columns * _CELL[0], rows * _CELL[1]), _DARK)
    pen, console = ImageDraw.Draw(picture), Console()
    for row, line in enumerate(lines):
        column = _SPARE[0] // 2
        for part in line.render(console):
            style = part.style
            front = tuple(style.color.get_truecolor()) if style and style.color else _LIGHT
            back = tuple(style.bgcolor.get_truecolor()) if style and style.bgcolor else None
            if style and style.reverse:
                front, back = back or _DARK, front
            for letter in part.text.replace("\n", ""):
                x, y = column * _CELL[0], row * _CELL[1] + _CELL[1] // 2
                cells = max(1, cell_len(letter))
                width, font = cells * _CELL[0], _font(_WIDE_FONTS if cells > 1 else _FONTS)
                if back is not None:
                    pen.rectangle((x, y, x + width - 1, y + _CELL[1] - 1), fill=back)
                pen.text((x + width / 2, y + _CELL[1] / 2), letter, front, font, "mm")
                column += cells
    return picture

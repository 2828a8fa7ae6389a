"""Moving-dot environment, the smallest task with image observations."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SIDE = 44
"""Image side in pixels: the smallest that agents' and predictors' networks accept without upscaling."""
_DOT, _STEP = 6, 4
_MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])  # (rows down, columns right)


class MovingDot(gym.Env[NDArray[np.uint8], np.int64]):
    """White dot on a dark field; actions keep it in place or move it 4 pixels in one of four directions.

    The observation is the image, ``(44, 44, 1)``. The reward is 1 when the dot is in the center and
    decreases linearly with its distance from the center, to 0 in the corners. The dot starts at a random
    position. Episodes end only at the step limit.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # type: ignore[misc]
    never_terminates = True

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(len(_MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Place the dot at a random position and return the image."""
        super().reset(seed=seed)
        self._corner = self.np_random.integers(SIDE - _DOT + 1, size=2)
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the dot; return the image and the reward."""
        self._corner = (self._corner + _STEP * _MOVES[action]).clip(0, SIDE - _DOT)
        middle = (SIDE - _DOT) / 2
        distance = float(np.linalg.norm(self._corner - middle) / np.linalg.norm([middle, middle]))
        return self._picture(), 1.0 - distance, False, False, {}

    def render(self) -> NDArray[np.uint8]:
        """Return the image as RGB, ``(44, 44, 3)``."""
        return self._picture().repeat(3, axis=2)

    def _picture(self) -> NDArray[np.uint8]:
        picture = np.full((SIDE, SIDE, 1), 40, np.uint8)
        row, column = self._corner
        picture[row : row + _DOT, column : column + _DOT] = 255
        return picture

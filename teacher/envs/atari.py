"""The seven Atari games of Christiano et al. (2017), such as ``teacher/Pong-v1``.

As in appendix A of that paper, preprocessing follows Mnih et al. (2015): 0 to 30 no-op frames at the start,
each action repeated for four frames, the pixelwise maximum of the last two of these frames, 84 x 84 gray
pixels, a stack of the last four of these images, and rewards clipped to [-1, 1]. There are no sticky actions.

The score, the remaining lives, the enemy count (BeamRider) and the dashboard (Enduro) are blacked out in
observations and clips, so that neither agents nor labelers can read the score. Losing a life does not end the
episode. When a game is over, 1 is subtracted from the reward (except in Pong), and the next game starts
within the same episode.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from teacher.errors import EnvironmentUnsuitableError

Area = tuple[slice, slice]

HORIZON = 4500
"""Steps per episode: five minutes of play. Longer episodes would take longer to replay for clips."""
_SIDE, _STACKED, _FRAMES_A_STEP, _MOST_NOOPS = 84, 4, 4, 30
_NOOP = 0
_ALL = slice(None)


@dataclass(frozen=True)
class Game:
    """Properties of one Atari game.

    Attributes:
        hidden: regions of the 210 x 160 screen to black out, each a pair of slices ``(rows, columns)``.
        end_penalty: amount subtracted from the reward when a game is over.
    """

    rom: str
    hidden: tuple[Area, ...]
    end_penalty: float = 1.0


GAMES: Mapping[str, Game] = {
    "BeamRider": Game("beam_rider", ((slice(0, 43), _ALL), (slice(181, 210), _ALL))),
    "Breakout": Game("breakout", ((slice(0, 17), _ALL),)),
    "Enduro": Game("enduro", ((slice(155, 210), _ALL),)),
    "Pong": Game("pong", ((slice(0, 24), _ALL),), end_penalty=0.0),
    "Qbert": Game("qbert", ((slice(0, 15), _ALL), (slice(15, 30), slice(0, 64)))),
    "Seaquest": Game("seaquest", ((slice(0, 32), _ALL),)),
    "SpaceInvaders": Game("space_invaders", ((slice(0, 22), _ALL),)),
}
"""Games, keyed by their names in environment IDs."""


class AtariGame(gym.Env[NDArray[np.uint8], np.int64]):
    """Atari game whose observations are four stacked grayscale frames, newest last.

    Observations are uint8 arrays of shape ``(4, 84, 84)``.

    Args:
        game: key of :data:`GAMES`, such as ``Pong``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 15}  # type: ignore[misc]
    never_terminates = True

    def __init__(self, game: str, render_mode: str | None = None) -> None:
        try:
            import ale_py  # noqa: PLC0415 (an optional package)
            from ale_py import roms  # noqa: PLC0415
        except ImportError as error:
            raise EnvironmentUnsuitableError(
                'Atari games need the ale-py package: pip install "rl-teacher[atari]"'
            ) from error
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.render_mode = render_mode
        self._game = GAMES[game]
        self._rom: Any = str(roms.get_rom_path(self._game.rom))
        self._ale: Any = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.loadROM(self._rom)
        self._actions = self._ale.getMinimalActionSet()
        self._pictures: deque[NDArray[np.uint8]] = deque(maxlen=_STACKED)
        self.action_space: Any = gym.spaces.Discrete(len(self._actions))
        self.observation_space = gym.spaces.Box(0, 255, (_STACKED, _SIDE, _SIDE), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Power-cycle the emulator, start a game and return the first observation."""
        super().reset(seed=seed)
        # Reload the ROM to power-cycle the emulator; a new game alone keeps some state of the last one.
        self._ale.setInt("random_seed", int(self.np_random.integers(2**31)))
        self._ale.loadROM(self._rom)
        self._begin_game()
        self._pictures.extend([_seen(self._screen())] * _STACKED)
        return np.stack(self._pictures), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Repeat the action for four frames; if the game ends, start a new game in the same episode."""
        score, screen = 0.0, self._screen()
        for _ in range(_FRAMES_A_STEP):
            score += self._ale.act(self._actions[action])
            before, screen = screen, self._screen()
            if self._ale.game_over():
                break
        reward = float(np.clip(score, -1, 1))
        if self._ale.game_over():
            reward -= self._game.end_penalty
            self._begin_game()
            before = screen = self._screen()
        # Some sprites are drawn only in every other frame.
        self._pictures.append(_seen(np.maximum(before, screen)))
        return np.stack(self._pictures), reward, False, False, {}

    def render(self) -> NDArray[np.uint8]:
        """Return the RGB screen that labelers see, ``(210, 160, 3)``, with hidden areas blacked out."""
        picture: NDArray[np.uint8] = self._ale.getScreenRGB()
        return self._hidden(picture)

    def close(self) -> None:
        """Release the emulator, which would print errors if it still existed at interpreter exit."""
        self._ale, self._actions = None, []

    def _begin_game(self) -> None:
        self._ale.reset_game()
        for _ in range(int(self.np_random.integers(_MOST_NOOPS + 1))):
            self._ale.act(_NOOP)

    def _screen(self) -> NDArray[np.uint8]:
        return self._hidden(self._ale.getScreenGrayscale())

    def _hidden(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        for area in self._game.hidden:
            picture[area] = 0
        return picture


def _seen(screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Downscale a screen to 84 x 84 pixels by area averaging."""
    return np.asarray(Image.fromarray(screen).resize((_SIDE, _SIDE), Image.Resampling.BOX))

"""Small multi-player grid game in the style of gym-multigrid's collect games.

A step takes a list with one action per player; an observation is a tuple with one view per player.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

_MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])  # (rows down, columns right)
_OWN, _OTHERS, _BALLS = range(3)
_CELL = 40  # pixels per cell in a frame
_FIELD, _LINE, _BALL = (245, 245, 240), (215, 215, 210), (60, 60, 60)
_PLAYERS = ((214, 69, 65), (65, 131, 215), (38, 166, 91), (244, 179, 80))

View = NDArray[np.uint8]


class CollectGame(gym.Env[tuple[View, ...], Sequence[int]]):
    """Grid game in which players collect balls; each collected ball reappears in a random free cell.

    An action keeps a player in place or moves it up, down, left or right. Players can't leave the grid or
    enter another player's cell. A player collects a ball by entering the ball's cell. The reward is the total
    number of balls collected in the step; ``info["rewards"]`` lists the count per player.

    Each player observes the whole grid as a uint8 array ``(size, size, 3)`` of 0s and 255s. The three
    channels mark the player itself, the other players, and the balls.

    Args:
        players: number of players, 1 to 4.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 5}  # type: ignore[misc]
    never_terminates = True

    def __init__(
        self, players: int = 2, balls: int = 4, size: int = 7, render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self._size, self._num_players, self._num_balls = size, players, balls
        view = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = gym.spaces.Tuple([view] * players)
        self.action_space: Any = gym.spaces.MultiDiscrete([len(_MOVES)] * players)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[View, ...], dict[str, Any]]:
        """Place players and balls in random cells, and return the players' views."""
        super().reset(seed=seed)
        cells = self.np_random.choice(self._size**2, self._num_players + self._num_balls, replace=False)
        places = [divmod(int(cell), self._size) for cell in cells]
        self._players, self._balls = places[: self._num_players], places[self._num_players :]
        return self._views(), {}

    def step(self, action: Sequence[int]) -> tuple[tuple[View, ...], float, bool, bool, dict[str, Any]]:
        """Move the players one by one, in order; ``action`` has one move per player."""
        rewards = [self._move(player, int(move)) for player, move in enumerate(action)]
        return self._views(), float(sum(rewards)), False, False, {"rewards": rewards}

    def _move(self, player: int, move: int) -> int:
        """Move a player unless the new cell is occupied; return the number of balls collected, 0 or 1."""
        row, column = np.add(self._players[player], _MOVES[move]).clip(0, self._size - 1).tolist()
        if (row, column) in self._players:
            return 0
        self._players[player] = (row, column)
        if (row, column) not in self._balls:
            return 0
        self._balls[self._balls.index((row, column))] = self._free_cell()
        return 1

    def _free_cell(self) -> tuple[int, int]:
        taken = {*self._players, *self._balls}
        free = [cell for cell in np.ndindex(self._size, self._size) if cell not in taken]
        row, column = free[int(self.np_random.integers(len(free)))]
        return int(row), int(column)

    def _views(self) -> tuple[View, ...]:
        views = []
        for player, place in enumerate(self._players):
            view = np.zeros((self._size, self._size, 3), np.uint8)
            for other in self._players[:player] + self._players[player + 1 :]:
                view[(*other, _OTHERS)] = 255
            for ball in self._balls:
                view[(*ball, _BALLS)] = 255
            view[(*place, _OWN)] = 255
            views.append(view)
        return tuple(views)

    def render(self) -> NDArray[np.uint8]:
        """Return an RGB image of the grid; players are large colored squares, balls small dark ones."""
        picture = np.full((self._size * _CELL, self._size * _CELL, 3), _FIELD, np.uint8)
        picture[::_CELL] = picture[:, ::_CELL] = _LINE
        for row, column in self._balls:
            _paint(picture, row, column, 14, _BALL)
        for (row, column), color in zip(self._players, _PLAYERS, strict=False):
            _paint(picture, row, column, 5, color)
        return picture


def _paint(picture: NDArray[np.uint8], row: int, column: int, margin: int, color: Sequence[int]) -> None:
    rows, columns = (slice(n * _CELL + margin, (n + 1) * _CELL - margin) for n in (row, column))
    picture[rows, columns] = color


def everyone(observations: Sequence[View]) -> View:
    """Combine all players' views into one image ``(size, size, players + 1)``.

    Each of the first ``players`` channels marks one player's cell; the last channel marks the balls. For use
    with ``--obs_transform teacher.envs.collect:everyone``.
    """
    return np.stack([view[..., _OWN] for view in observations] + [observations[0][..., _BALLS]], axis=-1)

"""Expert demonstrations for behavior cloning: record, save, load and split them."""

from teacher.data.demonstrations.episodes import Demonstrations, Split, demonstrated_episodes
from teacher.data.demonstrations.files import KEYS, load_demonstrations, save_demonstrations
from teacher.data.demonstrations.plots import draw_returns
from teacher.data.demonstrations.recording import record_demonstrations

__all__ = [
    "KEYS",
    "Demonstrations",
    "Split",
    "demonstrated_episodes",
    "draw_returns",
    "load_demonstrations",
    "record_demonstrations",
    "save_demonstrations",
]

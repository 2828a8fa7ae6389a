"""Demonstrations of an expert: record, save and load them, and split them for behaviour cloning."""

from teacher.demonstrations.episodes import Demonstrations, Split
from teacher.demonstrations.files import KEYS, load_demonstrations, save_demonstrations
from teacher.demonstrations.plots import draw_returns
from teacher.demonstrations.recording import record_demonstrations

__all__ = [
    "KEYS",
    "Demonstrations",
    "Split",
    "draw_returns",
    "load_demonstrations",
    "record_demonstrations",
    "save_demonstrations",
]

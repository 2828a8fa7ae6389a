"""Timing of a run's rounds, excluding time spent waiting for labelers, and the run's progress file."""

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from teacher.files import atomic_write

PROGRESS_NAME = "progress.json"
_ROUNDS = 20  # number of rounds that the speed is averaged over
_WRITE_SECONDS = 1.0


class RoundTimer:
    """Measures training speed, excluding time spent waiting for labelers.

    Attributes:
        waited: total seconds that the run has waited for labelers.
    """

    def __init__(self, waited: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.waited = waited
        self._clock = clock
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_ROUNDS + 1)
        self._waited_here = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent in the ``with`` block as waiting."""
        began = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - began
            self.waited += seconds
            self._waited_here += seconds

    def tick(self, step: int) -> None:
        """Record the current step; called at the start of training and after each round."""
        self._rounds.append((step, self._clock() - self._waited_here))

    @property
    def steps_per_second(self) -> float:
        """Steps per second over recent rounds, excluding waiting; NaN before the first round has ended."""
        if len(self._rounds) < 2:
            return math.nan
        (first, began), (last, ended) = self._rounds[0], self._rounds[-1]
        return (last - first) / max(ended - began, 1e-9)

    def seconds_left(self, num_timesteps: int) -> float:
        """Estimate the seconds until step ``num_timesteps`` at the current speed; NaN if unknown."""
        if not self._rounds:
            return math.nan
        return max(num_timesteps - self._rounds[-1][0], 0) / max(self.steps_per_second, 1e-9)


class ProgressFile:
    """Writes a run's progress to a file for ``teach ls``, at most once a second."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / PROGRESS_NAME
        self._written_at = -math.inf

    def write(self, step: int, seconds_left: float) -> None:
        """Write the current step and the estimated seconds left, if the last write was over a second ago."""
        if time.monotonic() - self._written_at < _WRITE_SECONDS:
            return
        left = seconds_left if math.isfinite(seconds_left) else None
        with atomic_write(self._path) as file:
            file.write(json.dumps({"step": step, "seconds_left": left}).encode() + b"\n")
        self._written_at = time.monotonic()


def read_progress(run_dir: Path) -> tuple[int, float | None]:
    """Read a run's step and estimated time left, in seconds, from its progress file.

    The time left is None if unknown. If the file can't be read, return ``(0, None)``.
    """
    try:
        said: dict[str, Any] = json.loads((run_dir / PROGRESS_NAME).read_text())
        left = said["seconds_left"]
        return int(said["step"]), None if left is None else float(left)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0, None

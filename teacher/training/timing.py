"""Timing of a run's rounds, without the time it waits for labelers, and its progress file."""

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
_ROUNDS = 20  # to average the rate over
_WRITE_SECONDS = 1.0


class RoundTimer:
    """Times the rounds of training.

    Args:
        waited: seconds that earlier processes of the run waited for labelers.
        clock: returns the time in seconds.

    Attributes:
        waited: total seconds that the run waited for labelers.
    """

    def __init__(self, waited: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.waited = waited
        self._clock = clock
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_ROUNDS + 1)
        self._waited_here = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the ``with`` block as waiting."""
        began = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - began
            self.waited += seconds
            self._waited_here += seconds

    def tick(self, step: int) -> None:
        """Record the current step; first called at the start of training."""
        self._rounds.append((step, self._clock() - self._waited_here))

    @property
    def steps_per_second(self) -> float:
        """Steps per second over the last rounds, without waiting; NaN before the first round ends."""
        if len(self._rounds) < 2:
            return math.nan
        (first, began), (last, ended) = self._rounds[0], self._rounds[-1]
        return (last - first) / max(ended - began, 1e-9)

    def seconds_left(self, num_timesteps: int) -> float:
        """Return the seconds until step ``num_timesteps`` at the current rate; NaN while it is unknown."""
        if not self._rounds:
            return math.nan
        return max(num_timesteps - self._rounds[-1][0], 0) / max(self.steps_per_second, 1e-9)


class ProgressFile:
    """File with the progress of a running training, for ``teach ls``; written at most once a second.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / PROGRESS_NAME
        self._written_at = -math.inf

    def write(self, step: int, seconds_left: float) -> None:
        """Write the current step and the estimated seconds left."""
        if time.monotonic() - self._written_at < _WRITE_SECONDS:
            return
        left = seconds_left if math.isfinite(seconds_left) else None
        with atomic_write(self._path) as file:
            file.write(json.dumps({"step": step, "seconds_left": left}).encode() + b"\n")
        self._written_at = time.monotonic()


def read_progress(run_dir: Path) -> tuple[int, float | None]:
    """Return a run's last written step and estimated seconds left; 0 and None without a readable file."""
    try:
        said: dict[str, Any] = json.loads((run_dir / PROGRESS_NAME).read_text())
        left = said["seconds_left"]
        return int(said["step"]), None if left is None else float(left)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0, None

"""Experiment tracking beside TensorBoard, in a background thread that can't stop or slow down training."""

import contextlib
import dataclasses
import math
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from rich.console import Console

from teacher.errors import describe_exception
from teacher.extras import require_extra
from teacher.reporting.console import waiting
from teacher.reporting.trackers import TRACKERS, TrackedRun, Tracker
from teacher.settings.config import (
    NO_OPTIONS,
    PARTS,
    PRIVATE,
    AgentConfiguration,
    RunSettings,
    TeachConfig,
    settings_of_agent,
)
from teacher.settings.unused import without_unused

PATIENCE_SECONDS = 60.0
"""At the end, longest wait for a single call."""
RETRY_SECONDS = 30.0
"""Time between the first call that fails and the next one that is tried."""
AT_ONCE_SECONDS = 1.0
"""At the end, seconds before the console says what the run waits for."""
_SECRET = re.compile(r"(?<=://)[^/\s]+(?=@)|(?<=write_token=)[^&\s]+")

_Call = Callable[[Tracker], None]


class Tracking:
    """Sends a run's metrics, videos and files to a tracker, in order and from a background thread.

    The tracker is opened for the first of them. If a call of the tracker fails, one line says so; what comes
    during the next :data:`RETRY_SECONDS` is left out, and then the tracker is opened again. At the end, it is
    opened again in any case, so that the tracked run gets its final status. Methods never wait, except
    :meth:`close`.

    Args:
        open_tracker: function that starts or resumes the tracked run.
    """

    def __init__(
        self,
        name: str,
        open_tracker: Callable[[], Tracker],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._clock = name, clock
        self._open_tracker = open_tracker
        self._console = console
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._calls_made = 0
        self._completed = False
        self._failing = False
        self._thread = threading.Thread(target=self._work, name=f"tracking: {name}", daemon=True)
        self._thread.start()

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log ``values``, whose keys are TensorBoard tags, at ``step``. NaN values are omitted."""
        known = {tag: float(value) for tag, value in values.items() if not np.isnan(value)}
        self._calls.put(lambda tracker: tracker.log_scalars(known, step))

    def log_video(self, path: Path, step: int) -> None:
        """Upload the video of an episode that ended at ``step``; may be called from any thread."""
        self._calls.put(lambda tracker: tracker.log_video(path, step))

    def log_results(self, files: Mapping[str, Callable[[Path], object]]) -> None:
        """Upload the files of a run that has completed.

        Args:
            files: for each file's name, a function that writes the file to a given path. It is called from
                the background thread.
        """
        self._completed = True
        for name, write in files.items():
            self._calls.put(partial(_log_file, name, write))

    def close(self) -> None:
        """Wait until everything is sent and the tracked run has ended; Ctrl-C skips the rest.

        If a single call takes more than :data:`PATIENCE_SECONDS`, the rest is skipped too.
        """
        with contextlib.suppress(KeyboardInterrupt):
            self._calls.put(None)
            self._thread.join(AT_ONCE_SECONDS)
            with waiting(self._console) as show:
                while self._thread.is_alive():
                    show(f"sending the rest to {self._name} (Ctrl-C skips it)")
                    before = self._calls_made
                    self._thread.join(PATIENCE_SECONDS)
                    if self._thread.is_alive() and self._calls_made == before:
                        self._failing = False
                        self._warn(f"no response for {PATIENCE_SECONDS:.0f} s")
                        return

    def _work(self) -> None:
        tracker: Tracker | None = None
        is_used, retry_at = False, -math.inf
        for call in iter(self._calls.get, None):
            is_used = True
            if self._failing and not self._completed and self._clock() < retry_at:
                continue
            try:
                tracker = tracker or self._open_tracker()
                call(tracker)
            except Exception as error:  # whatever the library raises, training goes on
                tracker, retry_at = None, self._clock() + RETRY_SECONDS
                self._warn(describe_exception(error))
            else:
                self._calls_made += 1
                self._failing = False
        if is_used:
            try:
                (tracker or self._open_tracker()).finish(completed=self._completed)
            except Exception as error:
                self._warn(describe_exception(error))

    def _warn(self, reason: str) -> None:
        if self._failing:
            return
        self._failing = True
        about = f"--track {self._name} failed and is tried again from time to time: {reason}"
        self._console.print(_SECRET.sub("***", about), style="yellow", markup=False)


def _log_file(name: str, write: Callable[[Path], object], tracker: Tracker) -> None:
    with tempfile.TemporaryDirectory(prefix="rl-teacher-") as folder:
        path = Path(folder) / name
        write(path)
        tracker.log_file(path)


def open_tracking(
    settings: RunSettings, agent_config: AgentConfiguration, console: Console
) -> Tracking | None:
    """Start to track a run as its settings say; return None if they don't, or if the library is missing.

    A missing library is reported with the command that installs it.
    """
    config = settings.config
    if config.track is None:
        return None
    try:
        require_extra(config.track, f"--track {config.track}", config.track)
    except Exception as error:  # importing may fail in any way
        console.print(f"{error}; training starts without it", style="yellow", markup=False)
        return None
    run = TrackedRun(
        settings.run_id.hex, config.experiment, config.run_dir, settings_of(config, agent_config)
    )
    return Tracking(config.track, partial(TRACKERS[config.track], run), console)


def settings_of(config: TeachConfig, agent_config: AgentConfiguration) -> dict[str, Any]:
    """Return a run's settings and its agent's hyperparameters, keyed by option name.

    Settings that have no effect in the run are left out, and so are private ones.
    """
    own = without_unused(dataclasses.asdict(config), config.predictor)
    settings = {name: value for name, value in own.items() if name not in {*NO_OPTIONS, *PRIVATE}}
    parts = {part: own[part] for part in PARTS if part in own} | {"agent": settings_of_agent(agent_config)[1]}
    for part, values in parts.items():
        settings |= {f"{part}.{name}": value for name, value in values.items()}
    return settings

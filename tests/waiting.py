"""Wait for other threads and processes, or let a simulated week take a second."""

import contextlib
import itertools
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

WEEK = 7 * 24 * 3600.0


class SimulatedTime:
    """Stands in for the modules ``time`` and ``threading`` of the modules under test."""

    Lock, RLock, Thread = threading.Lock, threading.RLock, threading.Thread

    def __init__(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now = 1000.0
        self.waits = 0
        for module in modules:
            for name in ("time", "threading"):
                if hasattr(module, name):
                    patch.setattr(module, name, self)

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        self.now += max(seconds, 0.001)

    def Event(self) -> "SimulatedEvent":
        return SimulatedEvent(self)


class SimulatedEvent(threading.Event):
    """An event whose limited waits end at once, when their time has passed."""

    def __init__(self, clock: SimulatedTime) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or self.is_set():
            return super().wait(timeout)
        self._clock.sleep(timeout)
        time.sleep(0)  # for other threads
        return self.is_set()


def wait_until(
    holds: Callable[[], object],
    failure: Callable[[], object] = lambda: "it did not come about in time",
    *,
    seconds: float = 240.0,
    pause: float = 0.02,
) -> None:
    """Poll until a condition holds; fail with what ``failure`` returns after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, failure()
        time.sleep(pause)


def completed(
    command: Sequence[str | Path], *, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and keep what it says."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


_candidates = itertools.count(os.getpid() * 53)


def free_port() -> int:
    """Find a port for a server that is started later.

    It is none of those that the system hands out: it might give such a one to somebody else meanwhile.
    Each process looks elsewhere, and never at one twice.
    """
    for candidate in _candidates:
        port = 20_000 + candidate % 12_000  # below are those of benchmarks/chaos.py
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("candidates are endless")

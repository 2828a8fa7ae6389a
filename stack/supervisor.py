"""Supervision of a stack's programs."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from stack.display import Display
from stack.process import STOP_SECONDS, Process, Service, State

LOOK_SECONDS = 0.1


ASKED_TO_END = threading.Event()
"""Set by the signals that stop a stack, in addition to the exception that they raise."""


class Supervisor:
    """Keeps programs running; a context manager that stops them in reverse order.

    Args:
        logs: folder of their logs.
        keep_open: file descriptor that each of them inherits.
        display: shows their state.
    """

    def __init__(self, logs: Path, keep_open: int, display: Display) -> None:
        self.processes: list[Process] = []
        self._groups: list[list[Process]] = []
        self._logs = logs
        self._keep_open = keep_open
        self._display = display
        display.processes = self.processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *services: Service) -> list[Process]:
        """Start programs together and wait until each is ready or has done its work.

        Raises:
            StackError: one of them, or one started before, cannot be kept running.
        """
        started = [Process(service, self._logs, [self._keep_open]) for service in services]
        self.processes += started
        self._groups.append(started)
        for process in started:
            process.start()
        while not all(process.state in (State.READY, State.DONE) for process in started):
            self.look()
        return started

    def look(self) -> None:
        """Check all programs, restart those that died, and sleep for a moment.

        Raises:
            StackError: a program cannot be kept running.
            KeyboardInterrupt: Python dropped the exception of a Ctrl-C, as in a destructor.
        """
        if ASKED_TO_END.is_set():
            raise KeyboardInterrupt
        for process in self.processes:
            said = process.look()
            if said is not None:
                self._display.say(said)
        self._display.draw()
        time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop all programs in reverse order within seconds, leaving no processes behind.

        An exception, such as that of a second Ctrl-C, ends the waiting early.
        """
        try:
            for group in reversed(self._groups):
                for process in group:
                    process.ask_to_stop()
                self._wait(group)
        finally:
            for process in reversed(self.processes):
                process.kill()
            self._display.draw()

    def _wait(self, group: Sequence[Process]) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and not all(process.has_stopped() for process in group):
            self._display.draw()
            time.sleep(0.05)
        for process in group:
            process.kill()
        self._display.draw()

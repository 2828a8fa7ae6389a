"""Starts, supervises and stops all programs of a stack."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from stack.display import Display
from stack.process import STOP_SECONDS, Process, Service, State

LOOK_SECONDS = 0.1


ASKED_TO_END = threading.Event()
"""Set when a signal asks the stack to stop; the signal handler then raises KeyboardInterrupt."""


class Supervisor:
    """Context manager that keeps programs running, and stops them in reverse order on exit."""

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
        """Start programs at once, wait until each is ready or has finished, and return their processes."""
        started = [Process(service, self._logs, [self._keep_open]) for service in services]
        self.processes += started
        self._groups.append(started)
        for process in started:
            process.start()
        while not all(process.state in (State.READY, State.DONE) for process in started):
            self.look()
        return started

    def look(self) -> None:
        """Check all programs once, restart those that died, and sleep for :data:`LOOK_SECONDS`.

        Raises:
            StackError: a program failed too often or has invalid settings.
            KeyboardInterrupt: the stack received a stop signal, but Python swallowed the signal handler's
                exception, for example because it was raised inside a destructor.
        """
        if ASKED_TO_END.is_set():
            raise KeyboardInterrupt
        for process in self.processes:
            message = process.look()
            if message is not None:
                self._display.say(message)
        self._display.draw()
        time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop all programs in reverse start order, and kill those that don't stop in time.

        An exception while waiting, such as KeyboardInterrupt from a second Ctrl-C, immediately kills all
        programs.
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

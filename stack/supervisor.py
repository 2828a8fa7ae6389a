"""Starts, supervises and stops all programs of a stack."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stack.process import STOP_SECONDS, Process, Service, State

_STYLES = {
    State.STARTING: "yellow",
    State.READY: "green",
    State.DOWN: "bold red",
    State.DONE: "dim",
    State.STOPPING: "yellow",
    State.STOPPED: "dim",
}


class Display:
    """Context manager that shows a live table of the stack's programs.

    If the output is not a terminal, it prints a line for each event instead.

    Attributes:
        processes: programs to show in the table.
        progress: line to show below the table; if empty, no line is shown.
        last_words: text to print on exit.
    """

    def __init__(self, console: Console) -> None:
        self.processes: Sequence[Process] = ()
        self.progress = ""
        self.last_words = ""
        self._console = console
        self._reported: set[str] = set()
        # Only draw() refreshes the table, because a refresh thread would interfere with forks and locks.
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._picture)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self.last_words:
            self.say(f"\n{self.last_words}\n", style="")

    def say(self, line: str, style: str = "yellow") -> None:
        """Print a line; if the table is shown, the line appears above it."""
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def draw(self) -> None:
        """Refresh the table or, without a terminal, print a line for each newly ready or finished program."""
        if self._console.is_terminal:
            self._live.refresh()
            return
        for process in self.processes:
            name = process.service.name
            if process.state in (State.READY, State.DONE) and name not in self._reported:
                self._reported.add(name)
                self.say(f"{name} is {process.state} {process.service.address}".rstrip(), style="")

    def _picture(self) -> Group:
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for title in ("", "state", "address", "restarts"):
            table.add_column(title, justify="right" if title == "restarts" else "left", no_wrap=True)
        for process in self.processes:
            state = Text(process.state, style=_STYLES[process.state])
            restarts = Text(str(process.restarts or ""), style="yellow")
            table.add_row(process.service.name, state, process.service.address, restarts)
        rows: list[Text | Table] = [Text(), table] if self.processes else []
        return Group(*rows, Text(f"\n{self.progress}", style="bold")) if self.progress else Group(*rows)


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

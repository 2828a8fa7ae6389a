"""Console output of the stack: a live table of programs, and messages about events."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stack.process import Process, State

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

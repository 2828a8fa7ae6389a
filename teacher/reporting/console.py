"""Messages of a run on the console: warnings, progress bars and status lines."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table

from teacher.errors import Topics, pluralize
from teacher.queries.collector import CollectorStatus

_PRINT_SECONDS = 30.0
_LEAST_BAR, _MOST_BAR, _TIME_WIDTH, _SPINNER_WIDTH = 10, 40, 7, 2  # characters


class RunConsole:
    """Prints a run's messages: each warning only once, and the run's state only when it changes."""

    def __init__(self, rich: Console) -> None:
        self.rich = rich
        self._warned = Topics()
        self._troubles: set[str] = set()
        self._paused = False

    def print(self, *texts: Any, **style: Any) -> None:
        """Print to the Rich console; accepts the arguments of :meth:`rich.console.Console.print`."""
        self.rich.print(*texts, **style)

    def warn_once(self, warning: str, about: str) -> None:
        """Print a warning, unless one with the same topic ``about`` has already been printed."""
        if self._warned.is_new(about):
            self.rich.print(warning, style="yellow")

    def show_trouble(self, status: CollectorStatus) -> None:
        """Print a message when a problem with the site or with clips starts, changes or ends.

        While it lasts, each message is printed once, because an outage may alternate between two errors.
        """
        trouble = f"retrying: {status.away}" if status.away else None
        if status.failed:
            failed = pluralize(status.failed, "comparison")
            trouble = f"{trouble or 'continuing'}; {failed} could not be shown and will be replaced"
        if trouble is None and self._troubles:
            self.rich.print("the site is reachable again", style="yellow")
            self._troubles.clear()
        elif trouble is not None and trouble not in self._troubles:
            self.rich.print(trouble, style="yellow")
            self._troubles.add(trouble)

    def show_pause(self, status: CollectorStatus) -> bool:
        """Print a message when the run is paused or resumed on the site; return True if it is paused."""
        paused = status.state == "paused"
        if paused and not self._paused:
            self.rich.print(
                "Paused on the site. Training continues when it is resumed there; Ctrl-C saves and exits.",
                style="yellow",
            )
        elif self._paused and not paused:
            self.rich.print("No longer paused.", style="yellow")
        self._paused = paused
        return paused


class _FittedProgress(Progress):
    """Progress bar that starts with the count, and shows what else fits the terminal's present width."""

    def __init__(self, console: Console, title: str, address: str) -> None:
        self._terminal, self._title, self._address = console, title, address
        super().__init__(console=console)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """Return the progress display."""
        tasks = list(tasks)
        room = self._terminal.width - len(f"{tasks[0].completed:.0f}/{tasks[0].total:.0f}" if tasks else "")
        columns: list[ProgressColumn] = [MofNCompleteColumn()]
        bar_at = len(columns)
        for text in (self._title, self._address):
            if text and len(text) < room:
                columns.append(TextColumn(text, markup=False))
                room -= len(text) + 1
                bar_at += text == self._title
        if room > _LEAST_BAR + _TIME_WIDTH:
            bar = BarColumn(min(_MOST_BAR, room - _TIME_WIDTH - 2))
            columns[bar_at:bar_at] = [bar, TimeRemainingColumn()]
        self.columns = tuple(columns)
        return super().make_tasks_table(tasks)


@contextmanager
def progress(console: Console, title: str, total: int, address: str = "") -> Iterator[Callable[[int], None]]:
    """Show a progress bar, and yield a function that sets the number of items completed so far.

    The bar appears when the function is first called. When the ``with`` block ends, the bar is set to 100%.
    If the console is not a terminal, a line is printed at most twice a minute instead.

    Args:
        title: what is counted, such as ``pretraining labels``.
        address: URL to show beside it; empty for none.
    """
    if not console.is_terminal:
        say = _ThrottledPrinter(console)
        yield lambda completed: say(f"{completed} of {total} {title}  {address}".rstrip())
        return
    with contextlib.ExitStack() as shown:
        bar = _FittedProgress(console, title, address)
        task = bar.add_task(title, total=total)

        def show(completed: int) -> None:
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, completed=completed, total=max(total, completed))

        yield show
        bar.update(task, total=bar.tasks[0].completed)


def once_begun(show: Callable[[int], None]) -> Callable[[int], None]:
    """Wrap a function from :func:`progress` so that nothing is shown before the first item is completed.

    A reward fit that counts no updates, such as that of linear models, then shows no bar.
    """
    return lambda completed: show(completed) if completed else None


class Show(Protocol):
    """Function that sets the text of a status line."""

    def __call__(self, text: str, *more: str) -> None:
        """Show ``text``, and each of ``more`` that the terminal is wide enough for."""


@contextmanager
def waiting(console: Console, after: float = 0.0) -> Iterator[Show]:
    """Show a status line, and yield a function that sets its text.

    On a terminal, the line is updated in place. Otherwise a line is printed at most twice a minute. Nothing
    is shown during the first ``after`` seconds.
    """
    begin, say = time.monotonic() + after, _ThrottledPrinter(console)
    with contextlib.ExitStack() as stack:
        statuses: list[Status] = []

        def show(text: str, *more: str) -> None:
            if time.monotonic() < begin:
                return
            for each in more:
                longer = f"{text}  {each}"
                if not console.is_terminal or len(longer) + _SPINNER_WIDTH <= console.width:
                    text = longer
            if not console.is_terminal:
                say(text)
            elif statuses:
                statuses[0].update(text)
            else:  # start the status line with its first text
                statuses.append(stack.enter_context(console.status(text)))

        yield show


class _ThrottledPrinter:
    """Prints messages at most twice a minute, skipping repeats."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = ""
        self._printed_at = -math.inf

    def __call__(self, text: str) -> None:
        if text != self._printed and time.monotonic() - self._printed_at > _PRINT_SECONDS:
            self._console.print(text, highlight=False)
            self._printed, self._printed_at = text, time.monotonic()

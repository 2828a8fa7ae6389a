"""Progress bar and status line for slow operations."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

_PRINT_SECONDS = 30.0


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, and yield a function that sets the number of items completed so far.

    The bar appears when the function is first called. When the ``with`` block ends, the bar is set to 100%.
    If the console is not a terminal, a line is printed at most twice a minute instead.
    """
    if not console.is_terminal:
        say = _ThrottledPrinter(console)
        yield lambda completed: say(f"{title}: {completed} of {total}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with contextlib.ExitStack() as shown:
        bar = Progress(*columns, console=console)
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


@contextmanager
def waiting(console: Console, after: float = 0.0) -> Iterator[Callable[[str], None]]:
    """Show a status line, and yield a function that sets its text.

    On a terminal, the line is updated in place. Otherwise a line is printed at most twice a minute. Nothing
    is shown during the first ``after`` seconds.
    """
    begin, say = time.monotonic() + after, _ThrottledPrinter(console)
    with contextlib.ExitStack() as stack:
        statuses: list[Status] = []

        def show(text: str) -> None:
            if time.monotonic() < begin:
                return
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

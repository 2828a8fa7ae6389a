"""What is shown while something takes long: a progress bar, or a line that says what is waited for."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

_SAY_AGAIN_SECONDS = 30.0


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar; call what it yields with the number completed so far.

    It ends full. Where there is no terminal a line is printed now and then.
    """
    if not console.is_terminal:
        say = _Occasionally(console)
        yield lambda completed: say(f"{title}: {completed} of {total}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda completed: bar.update(task, completed=completed, total=max(total, completed))
        bar.update(task, total=bar.tasks[0].completed)


@contextmanager
def waiting(console: Console, after: float = 0.0) -> Iterator[Callable[[str], None]]:
    """A line that says what is waited for; call what it yields with the text, as often as you like.

    On a terminal the line changes in place, elsewhere one is printed now and then; nothing is shown in the
    first ``after`` seconds.
    """
    begin, say = time.monotonic() + after, _Occasionally(console)
    with contextlib.ExitStack() as stack:
        statuses: list[Status] = []

        def show(text: str) -> None:
            if time.monotonic() < begin:
                return
            if not console.is_terminal:
                say(text)
            elif statuses:
                statuses[0].update(text)
            else:  # not before there is something to wait for
                statuses.append(stack.enter_context(console.status(text)))

        yield show


class _Occasionally:
    """Prints a text when it is new, at most twice a minute."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = ""
        self._told_at = -math.inf

    def __call__(self, text: str) -> None:
        if text != self._told and time.monotonic() - self._told_at > _SAY_AGAIN_SECONDS:
            self._console.print(text, highlight=False)
            self._told, self._told_at = text, time.monotonic()

"""What a run says to the person who started it."""

from typing import Any

from rich.console import Console

from teacher.errors import pluralize
from teacher.queries.collector import CollectorStatus


class RunConsole:
    """Prints a run's messages, each warning and each change of state once.

    Attributes:
        rich: the console that is printed to.
    """

    def __init__(self, rich: Console) -> None:
        self.rich = rich
        self._warned: set[str] = set()
        self._trouble: str | None = None
        self._paused = False

    def print(self, *texts: Any, **style: Any) -> None:
        """Print as :meth:`rich.console.Console.print` does."""
        self.rich.print(*texts, **style)

    def warn_once(self, warning: str, about: str) -> None:
        """Print a warning, unless one about the same topic was printed before."""
        if about not in self._warned:
            self._warned.add(about)
            self.rich.print(warning, style="yellow")

    def show_trouble(self, status: CollectorStatus) -> None:
        """Say what keeps comparisons from labelers or labels from here, and say when it is over."""
        trouble = f"trying again: {status.away}" if status.away else None
        if status.failed:
            failed = pluralize(status.failed, "comparison")
            trouble = f"{trouble or 'going on'}; {failed} could not be shown, others are asked"
        if trouble != self._trouble:
            self.rich.print(trouble or "the site answers again", style="yellow")
        self._trouble = trouble

    def show_pause(self, status: CollectorStatus) -> bool:
        """Say that the site paused the run, and say when it goes on; returns whether it is paused."""
        paused = status.state == "paused"
        if paused and not self._paused:
            self.rich.print(
                "Paused on the site. It goes on by itself when it is resumed there; Ctrl-C saves and ends.",
                style="yellow",
            )
        elif self._paused and not paused:
            self.rich.print("No longer paused.", style="yellow")
        self._paused = paused
        return paused

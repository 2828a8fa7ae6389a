"""Messages that a run prints to the console."""

from typing import Any

from rich.console import Console

from teacher.errors import pluralize
from teacher.queries.collector import CollectorStatus


class RunConsole:
    """Prints a run's messages: each warning only once, and the run's state only when it changes.

    Attributes:
        rich: Rich console to print to.
    """

    def __init__(self, rich: Console) -> None:
        self.rich = rich
        self._warned: set[str] = set()
        self._troubles: set[str] = set()
        self._paused = False

    def print(self, *texts: Any, **style: Any) -> None:
        """Print to the Rich console; accepts the arguments of :meth:`rich.console.Console.print`."""
        self.rich.print(*texts, **style)

    def warn_once(self, warning: str, about: str) -> None:
        """Print a warning, unless one with the same topic ``about`` has already been printed."""
        if about not in self._warned:
            self._warned.add(about)
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

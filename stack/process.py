"""Supervision of one program: start, readiness check, restart after a failure, and stop."""

import contextlib
import enum
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class StackError(Exception):
    """The stack can't start or continue; the message says why and what to do."""


MAX_FAILURES = 5  # in a row, after which a program that never ran steadily is not restarted
WRONG_SETTINGS = 2  # exit status that means wrong settings, so a restart would fail again
FIRST_DELAY_SECONDS = 0.25  # before a restart; doubles with each failure
LONGEST_DELAY_SECONDS = 30.0
_MOST_DOUBLINGS = 10
STEADY_SECONDS = 5.0  # a program that has been ready for this long runs steadily; its failure count is reset
START_SECONDS = 120.0
STOP_SECONDS = 8.0
ROOT = Path(__file__).resolve().parents[1]

_LEASH = Path(__file__).with_name("leash.py")


class State(enum.StrEnum):
    """State of a program; the values are shown in the status table."""

    STARTING = "starting"
    READY = "running"
    DOWN = "down"
    DONE = "done"
    STOPPING = "stopping"
    STOPPED = "stopped"


def _at_once() -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Service:
    """A program to run, and the settings for its supervision."""

    name: str  # name for the status table and the log file
    command: Callable[[], Sequence[str]]  # function that returns the command line; called before each start
    # the program's complete environment; by default, a copy of this process's environment
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    # function that returns True if the program is ready; must return within a second
    is_ready: Callable[[], bool] = _at_once
    address: str = ""  # URL or ``host:port`` to show in the status table; if empty, nothing is shown
    folder: Path = ROOT  # the program's working directory
    user: str | None = None  # user to run the program as, or None for the current user
    stop_signal: signal.Signals = signal.SIGTERM  # signal that asks the program to stop
    # True for a one-shot program, which exits with status 0 when its work is done; False for a program that
    # should run until it is stopped
    ends: bool = False
    # number of consecutive failures after which the program is not restarted. A program that has run steadily
    # is restarted forever, because what it needs may come back
    max_failures: int = MAX_FAILURES


class Process:
    """Runs and supervises the program of a :class:`Service`.

    The program runs in a new session. The terminal's Ctrl-C therefore doesn't reach it, and it can be killed
    together with its child processes. If this Python process dies, the kernel stops the program
    (:mod:`stack.leash`).

    Args:
        service: the service to run.
        logs: folder for the log file ``NAME.log``.
        keep_open: file descriptors that the program inherits.

    Attributes:
        restarts: number of times that the program was restarted.
    """

    def __init__(self, service: Service, logs: Path, keep_open: Sequence[int] = ()) -> None:
        self.service = service
        self.log = logs / f"{service.name}.log"
        self.state = State.DOWN
        self.restarts = 0
        self._keep_open = keep_open
        self._failures = 0
        self._was_steady = False
        self._start_at = 0.0
        self._started_at = 0.0
        self._ready_at = 0.0
        self._log_start = 0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the program's process ID, or None if it isn't running."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the program without waiting; :meth:`look` then detects whether it's ready or has failed."""
        service = self.service
        leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid())]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._child = subprocess.Popen(
                [*leash, str(int(service.stop_signal)), service.user or "-", *service.command()],
                cwd=service.folder,
                env=dict(service.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._keep_open,
            )
        self._started_at = time.monotonic()
        self.state = State.STARTING

    def look(self) -> str | None:
        """Update the program's state, and restart the program if it's down and its restart delay is over.

        Returns:
            A message for the user if the program has died or is running again, else None.

        Raises:
            StackError: the program failed too often or took too long to start, and never ran steadily, or it
                exited with the status for invalid settings.
        """
        if self.state is State.DOWN and self._child is None and time.monotonic() >= self._start_at:
            self.restarts += 1
            self.start()
        if self._child is None:
            return None
        status = self._child.poll()
        if status is not None:
            self._kill_group()
            self._child = None
            return self._ended(status)
        if self.state is State.STARTING:
            if self.service.is_ready():
                self.state, self._ready_at = State.READY, time.monotonic()
                is_news = self.restarts and self._failures <= self.service.max_failures
                return f"{self.service.name} is running again" if is_news else None
            if not self._was_steady and time.monotonic() - self._started_at > START_SECONDS:
                raise StackError(
                    f"{self.service.name} was not ready within {START_SECONDS:.0f} s: {self.last_words()}"
                )
        elif time.monotonic() - self._ready_at > STEADY_SECONDS:
            was_silent = self._failures > self.service.max_failures
            self._was_steady, self._failures = True, 0
            return f"{self.service.name} is running again" if was_silent else None
        return None

    def _ended(self, status: int) -> str | None:
        if self.service.ends and status == 0:
            self.state = State.DONE
            return None
        self.state = State.DOWN
        self._failures += 1
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        often = f" {self._failures} times in a row" if self._failures > 1 else ""
        is_too_often = self._failures >= self.service.max_failures
        if status == WRONG_SETTINGS or (is_too_often and not self._was_steady):
            raise StackError(f"{self.service.name} failed{often} ({how}): {self.last_words()}")
        doublings = min(self._failures - 1, _MOST_DOUBLINGS)
        delay = min(FIRST_DELAY_SECONDS * 2**doublings, LONGEST_DELAY_SECONDS)
        self._start_at = time.monotonic() + delay
        if is_too_often:  # one line for the whole outage
            text = f"{self.service.name} failed{often} ({how}); it is restarted until it runs: "
            return text + self.last_words() if self._failures == self.service.max_failures else None
        return f"{self.service.name} ended ({how}); restarting it in {delay:g} s"

    def ask_to_stop(self) -> None:
        """Send the stop signal to the program without waiting for it to end."""
        if self._child is not None and self._child.poll() is None:
            self.state = State.STOPPING
            self._child.send_signal(self.service.stop_signal)

    def stop(self) -> None:
        """Ask the program to stop; after :data:`STOP_SECONDS`, kill it and its child processes."""
        self.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.has_stopped() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill()

    def has_stopped(self) -> bool:
        """Return True if the program isn't running."""
        return self._child is None or self._child.poll() is not None

    def kill(self) -> None:
        """Kill the program and its child processes."""
        if self._child is not None:
            self._kill_group()
            self._child.wait()
            self._child = None
        if self.state is not State.DONE:
            self.state = State.STOPPED

    def _kill_group(self) -> None:
        """Kill all processes in the program's process group.

        A program's child processes, such as a web server's workers, may still be running after it has ended.
        """
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Return a message with the last line that the program has logged since it was started."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            last = next((line for line in reversed(lines) if line), None)
            if last is not None:
                return f"{last} (see {self.log})"
        return f"no output (see {self.log})"


@contextlib.contextmanager
def running(service: Service, logs: Path) -> Iterator[None]:
    """Run a server during the ``with`` block; the block starts once the server is ready."""
    process = Process(service, logs)
    process.start()
    try:
        while process.state is not State.READY:
            process.look()
            time.sleep(0.02)
        yield
    finally:
        process.stop()

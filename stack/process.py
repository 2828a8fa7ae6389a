"""A supervised program: started, watched, restarted when it dies, and stopped."""

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

from stack.errors import StackError

MAX_FAILURES = 5  # failed starts in a row
WRONG_SETTINGS = 2  # exit status of a program that would fail the same way again
FIRST_DELAY_SECONDS = 0.25  # before a restart; doubles with each failure
LONGEST_DELAY_SECONDS = 4.0
STEADY_SECONDS = 5.0  # a program that runs this long after it is ready has started successfully
START_SECONDS = 120.0
STOP_SECONDS = 8.0
ROOT = Path(__file__).resolve().parents[1]

_LEASH = Path(__file__).with_name("leash.py")


class State(enum.StrEnum):
    """State of a program, as shown in the status table."""

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
    """A program to run and how to supervise it.

    Attributes:
        name: name of its log and its row in the status table.
        command: returns the command line, at each start.
        environment: all its environment variables.
        is_ready: returns whether it is ready, within a second.
        address: address in the status table.
        folder: working directory.
        user: user to run it as; None for the current one.
        stop_signal: signal that asks it to stop.
        ends: it exits with status 0 when its work is done.
        max_failures: allowed number of failed starts in a row.
    """

    name: str
    command: Callable[[], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    is_ready: Callable[[], bool] = _at_once
    address: str = ""
    folder: Path = ROOT
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    ends: bool = False
    max_failures: int = MAX_FAILURES


class Process:
    """A running service.

    The program leads a new session, so that the terminal's Ctrl-C does not reach it and its child processes
    can be stopped with it. It ends when this process dies (see :mod:`stack.leash`).

    Args:
        service: the service to run.
        logs: folder of ``NAME.log``.
        keep_open: file descriptors that the program inherits.

    Attributes:
        restarts: number of restarts.
    """

    def __init__(self, service: Service, logs: Path, keep_open: Sequence[int] = ()) -> None:
        self.service = service
        self.log = logs / f"{service.name}.log"
        self.state = State.DOWN
        self.restarts = 0
        self._keep_open = keep_open
        self._failures = 0
        self._start_at = 0.0
        self._started_at = 0.0
        self._ready_at = 0.0
        self._log_start = 0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the program, None if it does not run."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the program; :meth:`look` reports the outcome."""
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
        """Check the program, restart it if that is due, and return a message if something changed.

        Raises:
            StackError: it failed too often, or exited with the status for wrong settings.
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
                return f"{self.service.name} is running again" if self.restarts else None
            if time.monotonic() - self._started_at > START_SECONDS:
                raise StackError(
                    f"{self.service.name} was not ready within {START_SECONDS:.0f} s: {self.last_words()}"
                )
        elif self._failures and time.monotonic() - self._ready_at > STEADY_SECONDS:
            self._failures = 0
        return None

    def _ended(self, status: int) -> str | None:
        if self.service.ends and status == 0:
            self.state = State.DONE
            return None
        self.state = State.DOWN
        self._failures += 1
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        if status == WRONG_SETTINGS or self._failures >= self.service.max_failures:
            often = f" {self._failures} times in a row" if self._failures > 1 else ""
            raise StackError(f"{self.service.name} failed{often} ({how}): {self.last_words()}")
        delay = min(FIRST_DELAY_SECONDS * 2 ** (self._failures - 1), LONGEST_DELAY_SECONDS)
        self._start_at = time.monotonic() + delay
        return f"{self.service.name} ended ({how}); restarting it in {delay:g} s"

    def ask_to_stop(self) -> None:
        """Send the stop signal to the program and do not restart it."""
        if self._child is not None and self._child.poll() is None:
            self.state = State.STOPPING
            self._child.send_signal(self.service.stop_signal)

    def stop(self) -> None:
        """Stop the program and its child processes within seconds."""
        self.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.has_stopped() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill()

    def has_stopped(self) -> bool:
        """True if the program does not run."""
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
        """Kill the rest of the process group, as a web server's workers outlive their master for a while."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Return the last line of the program's log since its start."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            said = next((line for line in reversed(lines) if line), None)
            if said is not None:
                return f"{said} (see {self.log})"
        return f"no output (see {self.log})"


@contextlib.contextmanager
def running(service: Service, logs: Path) -> Iterator[None]:
    """Run a server, ready at the start of the ``with`` block, until its end; its log goes to ``logs``."""
    process = Process(service, logs)
    process.start()
    try:
        while process.state is not State.READY:
            process.look()
            time.sleep(0.02)
        yield
    finally:
        process.stop()

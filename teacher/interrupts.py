"""Handling of Ctrl-C and of signals that end a run, even if Python discards their ``KeyboardInterrupt``."""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals by which the system, a lost terminal or a batch system asks a program to save and exit."""

_asked: list[int] = []


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Make :data:`ENDING` raise ``KeyboardInterrupt``, and record them and SIGINT during the ``with`` block.

    Python swallows exceptions raised in finalizers and in callbacks from C code. :func:`check` re-raises a
    ``KeyboardInterrupt`` that was lost this way. The handlers of :data:`ENDING` stay installed after the
    block. Signals that are ignored, such as SIGHUP under ``nohup``, stay ignored.
    """
    handle(_interrupt)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell may have set SIGINT to be ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)
        _asked.clear()


def handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Set the handler of :data:`ENDING`, except of signals that are ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def check() -> None:
    """Re-raise a ``KeyboardInterrupt`` that Python swallowed, if any; call this often in long loops."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    is_first = not _asked
    _asked.append(number)
    if number == signal.SIGHUP:
        _leave_lost_terminal()
    if is_first or number == signal.SIGINT:  # a terminal or batch system may send more signals during a save
        raise KeyboardInterrupt


def _leave_lost_terminal() -> None:
    """Discard what is printed from now on to a terminal that is gone, because printing there would fail."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, descriptor)
                os.close(nothing)

"""Handling of Ctrl-C and SIGTERM, including interrupts whose ``KeyboardInterrupt`` Python discards."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_asked: list[int] = []


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Make SIGTERM raise ``KeyboardInterrupt``, and record SIGINT and SIGTERM during the ``with`` block.

    Python swallows exceptions raised in finalizers and in callbacks from C code. :func:`check` re-raises a
    ``KeyboardInterrupt`` that was lost this way. The SIGTERM handler stays installed after the block.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell may have set SIGINT to be ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)
        _asked.clear()


def check() -> None:
    """Re-raise a ``KeyboardInterrupt`` that Python swallowed, if any; call this often in long loops."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    raise KeyboardInterrupt

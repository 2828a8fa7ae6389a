"""Handling of Ctrl-C and SIGTERM, including interrupts whose ``KeyboardInterrupt`` Python discards."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_asked: list[int] = []


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Make SIGTERM raise ``KeyboardInterrupt``, and record every interrupt during the ``with`` block.

    Python discards an exception raised in a finalizer or in a callback from C code. :func:`check` raises
    such a lost interrupt again.
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
    """Raise ``KeyboardInterrupt`` again if Python discarded an earlier one; call this often in long loops."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    raise KeyboardInterrupt

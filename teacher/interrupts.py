"""Handling of Ctrl-C and SIGTERM, including interrupts whose exception Python drops."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_asked: list[int] = []


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Make SIGTERM raise ``KeyboardInterrupt`` like SIGINT, and record both until the end of the block.

    Python drops an exception raised in a finalizer or a callback from C code; :func:`check` raises it again.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)
        _asked.clear()


def check() -> None:
    """Raise ``KeyboardInterrupt`` if an interrupt was dropped; call it once per round."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    raise KeyboardInterrupt

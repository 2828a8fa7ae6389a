"""Ctrl-C and SIGTERM, also where Python drops the exception that they raise."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_asked: list[int] = []


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Let SIGTERM raise ``KeyboardInterrupt`` as SIGINT does, and remember both until the end of the block.

    Python drops an exception that is raised while a finalizer or a callback of C code runs; :func:`check`
    raises it again.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where a shell had it ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)
        _asked.clear()


def check() -> None:
    """Raise ``KeyboardInterrupt`` where an interrupt was dropped; call this once a round."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    raise KeyboardInterrupt

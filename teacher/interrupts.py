"""Ctrl-C and SIGTERM, also where Python drops the exception that they raise."""

import signal
import threading
from types import FrameType

_asked = threading.Event()


def listen() -> None:
    """Let SIGTERM and SIGINT raise ``KeyboardInterrupt`` in this process, and be remembered.

    Python drops an exception that is raised while a finalizer or a callback of C code runs; :func:`check`
    raises it again.
    """
    _asked.clear()
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell had it ignored
        signal.signal(signal.SIGINT, _interrupt)


def check() -> None:
    """Raise ``KeyboardInterrupt`` where an interrupt was dropped; call this once a round."""
    if _asked.is_set():
        raise KeyboardInterrupt


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _asked.set()
    raise KeyboardInterrupt

"""Faster imports at program start."""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection while the ``with`` block imports modules.

    Garbage collection takes 40% of the import time. If the block imported any module, all objects that exist
    when it exits are frozen (``gc.freeze``) and never collected, so use this only at program start.
    """
    known, collects = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if collects:
            gc.enable()

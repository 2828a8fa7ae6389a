"""Start a program sooner."""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Suspend garbage collection while a program imports its modules: it took two fifths of that time.

    Later collections skip what is there at the end of the block, so use this at the start of a program only.
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

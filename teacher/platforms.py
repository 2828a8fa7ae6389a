"""Differences between operating systems: what Windows lacks, disk space and OpenGL on macOS."""

import os
import sys
from typing import IO

UNSUPPORTED = "RL-Teacher needs Linux or macOS; on Windows, run it in WSL 2"
"""Error message for Windows, which lacks the file locks, process groups and web server that runs need."""
GL_BACKENDS = ("cgl",) if sys.platform == "darwin" else ("egl", "osmesa")
"""MuJoCo's OpenGL backends that work without a display, best first."""

_AT_ONCE = 2**24  # bytes


def reserve(file: IO[bytes], size: int) -> None:
    """Extend a file to at least ``size`` bytes and reserve the space on disk.

    Without this, writing to a memory-mapped file on a full disk would kill the process with SIGBUS.

    Raises:
        OSError: there is not enough space.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(file.seek(0, os.SEEK_END), size, _AT_ONCE):  # macOS has no posix_fallocate
        file.write(bytes(min(_AT_ONCE, size - start)))
    file.flush()

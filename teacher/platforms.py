"""Differences between operating systems and file systems."""

import ctypes
import os
import sys
from pathlib import Path
from typing import IO

UNSUPPORTED = "RL-Teacher needs Linux or macOS; on Windows, run it in WSL 2"
"""Error message for Windows, which lacks the file locks, process groups and web server that runs need."""
GL_BACKENDS = ("cgl",) if sys.platform == "darwin" else ("egl", "osmesa")
"""MuJoCo's OpenGL backends that work without a display, best first."""

_AT_ONCE = 2**24  # bytes
# Magic numbers (statfs(2)) of ext2 to ext4, XFS, Btrfs, tmpfs, overlay, ZFS, F2FS, ramfs and bcachefs.
_LOCAL = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0x858458F6, 0xCA451A4E)
)


def is_local(folder: Path) -> bool:
    """Return True if a folder is on a local file system, where processes share memory through files.

    SQLite's write-ahead log needs that. On Linux, a file system that is not known to be local is taken for a
    network file system such as NFS; on other systems, every file system is taken for a local one.
    """
    if sys.platform != "linux":
        return True
    status = ctypes.create_string_buffer(1024)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), status):
        return True  # missing or inaccessible: the caller finds out
    return ctypes.c_ulong.from_buffer(status).value in _LOCAL


def reserve(file: IO[bytes], size: int) -> None:
    """Extend a file to at least ``size`` bytes and reserve the space on disk.

    Without this, writing to a memory-mapped file on a full disk would kill the process with SIGBUS.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(file.seek(0, os.SEEK_END), size, _AT_ONCE):  # macOS has no posix_fallocate
        file.write(bytes(min(_AT_ONCE, size - start)))
    file.flush()

"""Tells file systems apart on which SQLite can't keep a write-ahead log."""

import ctypes
import errno
import mmap
import os
import sys
import tempfile
from pathlib import Path

# Magic numbers (statfs(2)) of ext2 to ext4, XFS, Btrfs, tmpfs, overlay, ZFS, F2FS, ramfs and bcachefs.
_LOCAL = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0x858458F6, 0xCA451A4E)
)


def shares_memory(folder: Path) -> bool:
    """Return True if processes can share memory through files in a folder, as a write-ahead log needs.

    On Linux, a file system that is not known to be local is taken for a network file system such as NFS,
    whose machines don't see each other's memory.
    """
    if sys.platform == "linux":
        status = ctypes.create_string_buffer(1024)
        failed = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), status)
        if not failed and ctypes.c_ulong.from_buffer(status).value not in _LOCAL:
            return False
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
    except PermissionError:
        return True  # a folder that can't be written, which is another problem
    except OSError as error:
        return error.errno != errno.ENODEV
    return True

"""Files that appear whole or not at all, and what those are worth that others made."""

import contextlib
import fcntl
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from teacher.errors import ConfigError

DAMAGED_ARCHIVE = (
    ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError, NotImplementedError, RuntimeError,
    SyntaxError, tokenize.TokenError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""What reading a damaged ``.npz`` may raise besides OSError; an ``.npy`` file is no context manager."""


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into; it takes the name ``path`` at the end, and outlives a loss of power.

    Where writing fails, ``path`` stays as it was. One process at a time may write a path.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)


def require_new(path: Path) -> None:
    """Refuse, before anything is made for it, a name that something has already.

    Raises:
        ConfigError: something has, or there can be no such name.
    """
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another name") from error
    if exists:
        raise ConfigError(f"{path} exists; choose another name or remove it")


def require_folder(path: Path) -> None:
    """Raise :class:`ConfigError`, before anything is made for a file, where there is no folder for it."""
    if not path.parent.is_dir():
        raise ConfigError(f"expected a folder for {path.name}; make {path.parent} first")


def read_token(path: Path) -> str:
    """The API token in a file; where that is damaged, one that no site takes."""
    return path.read_text(errors="replace").strip()


@contextlib.contextmanager
def opened_archive(file: IO[bytes]) -> Iterator[Any]:
    """The arrays of an ``.npz`` file by name, none of them unpickled.

    Raises:
        zipfile.BadZipFile: it is another file, or only the beginning of one.
    """
    is_zip = zipfile.is_zipfile(file)  # or has one at its end
    file.seek(0)
    if not is_zip or file.read(2) != b"PK":  # numpy would take it for a pickle, and say how to load that
        raise zipfile.BadZipFile("it is cut off, or no .npz file")
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        yield archive


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """A folder, made where it is missing, that no other process holds in this way meanwhile.

    Raises:
        BlockingIOError: another one does.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield

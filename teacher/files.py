"""Atomic file writes, folder locks, and safe reading of untrusted archives."""

import contextlib
import errno
import fcntl
import glob
import itertools
import os
import secrets
import shutil
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from teacher.errors import ConfigError, DataError, StorageError, one_line

DAMAGED_ARCHIVE = (
    ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError, NotImplementedError, RuntimeError,
    SyntaxError, tokenize.TokenError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions besides OSError from reading a damaged ``.npz``, or an ``.npy``, which is no context manager."""

_TRIES, _PAUSE_SECONDS = 20, 0.01  # to lock a folder


@contextlib.contextmanager
def atomic_write(path: Path, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, which is synced and renamed to ``path`` at the end.

    If writing fails, ``path`` stays as it was. Concurrent writers each use their own temporary file.

    Args:
        path: the final name.
        new: never replace a file, even one created meanwhile.

    Raises:
        ConfigError: with ``new``, ``path`` exists.
    """
    with part_of(path, new=new) as part, part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # for the new name
    finally:
        os.close(folder)


@contextlib.contextmanager
def saved(path: Path, what: str, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing by :func:`atomic_write`, with one-line errors.

    Raises:
        ConfigError: with ``new``, the name is taken.
        StorageError: the file cannot be written; the message names ``what``.
    """
    try:
        with atomic_write(path, new=new) as file:
            yield file
    except OSError as error:
        raise StorageError(f"cannot write {what}: {error.strerror or error}") from error


@contextlib.contextmanager
def refusing_damage(message: str, *also: type[Exception]) -> Iterator[None]:
    """Turn exceptions from reading a damaged file into a :class:`DataError` of ``message`` and the reason.

    Args:
        message: names the file and the problem.
        also: additional exceptions to convert.
    """
    damage: tuple[type[Exception], ...] = (OSError, *DAMAGED_ARCHIVE, *also)
    try:
        yield
    except damage as error:
        raise DataError(f"{message}: {one_line(error)}") from error


@contextlib.contextmanager
def part_of(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield the name of a temporary file for another program to write; rename it to ``path`` at the end."""
    part, descriptor = _free_part(path, os.O_WRONLY | os.O_CREAT)
    try:
        yield part
        if new:
            _take_new_name(part, path)
        else:
            part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(descriptor)


def _take_new_name(part: Path, path: Path) -> None:
    """Rename a file to a name that must not exist."""
    try:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:  # a file system without links, where an empty file has the name for a moment
            path.touch(exist_ok=False)
            part.replace(path)
        else:
            part.unlink()
    except FileExistsError as error:
        raise _taken(path) from error


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder; rename it to ``path`` at the end, or remove it on an error.

    Raises:
        ConfigError: ``path`` exists.
    """
    part, descriptor = _free_part(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _empty(part)  # a killed process may have left files
        yield part
        try:
            part.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise _taken(path) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _free_part(path: Path, flags: int) -> tuple[Path, int]:
    """Lock an unused temporary file or folder next to ``path``; return its path and descriptor."""
    for number in itertools.count(1):
        part = path.with_name(f".{path.name}.part{'' if number == 1 else number}")
        if flags & os.O_DIRECTORY:
            part.mkdir(exist_ok=True)
        try:
            descriptor = _hold(part, flags, strict=False)
        except FileNotFoundError:
            if flags & os.O_CREAT:  # its folder is missing
                raise
            continue  # it was just renamed
        if descriptor is not None:
            return part, descriptor
    raise AssertionError("numbers are endless")


def _hold(path: Path, flags: int, *, strict: bool) -> int | None:
    """Open and lock a file or folder; return None if another process holds it or it was removed meanwhile.

    Args:
        path: the file or folder.
        flags: flags of :func:`os.open`.
        strict: fail on a file system without locks.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        if not strict:
            return descriptor
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def remove_abandoned_parts(path: Path) -> None:
    """Remove the temporary files of killed writers of ``path``."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.part*"):
        with contextlib.suppress(OSError):
            descriptor = _hold(part, os.O_WRONLY, strict=False)
            if descriptor is not None:
                try:
                    part.unlink()
                finally:
                    os.close(descriptor)


def require_new(path: Path) -> None:
    """Check that a new file's name is free, before doing any work for it.

    Raises:
        ConfigError: ``path`` exists or is not a valid name.
    """
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another name") from error
    if exists:
        raise _taken(path)


def _taken(path: Path) -> ConfigError:
    return ConfigError(f"{path} exists; choose another name or remove it")


def require_folder(path: Path) -> None:
    """Raise :class:`ConfigError` if a new file's folder is missing, before doing any work for it."""
    if not path.parent.is_dir():
        raise ConfigError(f"expected a folder for {path.name}; make {path.parent} first")


def read_token(path: Path) -> str:
    """Read the API token in a file; a damaged file gives an invalid token."""
    return path.read_text(errors="replace").strip()


@contextlib.contextmanager
def opened_archive(file: IO[bytes]) -> Iterator[Any]:
    """Open an ``.npz`` file as arrays by name, without unpickling.

    Raises:
        zipfile.BadZipFile: it is not an ``.npz`` file, or is cut off.
    """
    is_zip = zipfile.is_zipfile(file)  # also true if one is appended to another file
    file.seek(0)
    if not is_zip or file.read(2) != b"PK":  # NumPy would take it for a pickle and suggest loading it
        raise zipfile.BadZipFile("it is cut off, or not an .npz file")
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        yield archive


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes, creating it if it is missing.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be created.
    """
    descriptor = _held_folder(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _held_folder(folder: Path) -> int:
    """Lock a folder, with several tries, as ``teach ls`` holds locks for a moment."""
    for last in [False] * (_TRIES - 1) + [True]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _hold(folder / "lock", os.O_RDWR | os.O_CREAT, strict=True)
        except (FileNotFoundError, FileExistsError):  # its holder is just removing it
            if last or (folder.exists() and not folder.is_dir()):
                raise
            descriptor = None
        if descriptor is not None:
            return descriptor
        time.sleep(_PAUSE_SECONDS)
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(folder))


def remove_held(folder: Path) -> None:
    """Remove a folder that this process holds; other processes never see it partly removed."""
    gone = folder.with_name(f".{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

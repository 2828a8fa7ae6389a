"""Write files whole or not at all, lock folders, and refuse damaged files."""

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
"""What reading a damaged ``.npz`` may raise besides OSError; an ``.npy`` file is no context manager."""

_TRIES, _PAUSE_SECONDS = 20, 0.01  # to hold a folder


@contextlib.contextmanager
def atomic_write(path: Path, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a file to write into; it takes the name ``path`` at the end, and outlives a loss of power.

    Where writing fails, ``path`` stays as it was. Of several who write it at once, each writes a file of its
    own.

    Args:
        path: its name.
        new: take nobody's place, also where somebody has taken the name meanwhile.

    Raises:
        ConfigError: with ``new``, the name is taken.
    """
    with part_of(path, new=new) as part, part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)


@contextlib.contextmanager
def saved(path: Path, what: str, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a file to write into as :func:`atomic_write`.

    Raises:
        ConfigError: with ``new``, the name is taken.
        StorageError: it cannot be written; the message names ``what``.
    """
    try:
        with atomic_write(path, new=new) as file:
            yield file
    except OSError as error:
        raise StorageError(f"cannot write {what}: {error.strerror or error}") from error


@contextlib.contextmanager
def refusing_damage(message: str, *also: type[Exception]) -> Iterator[None]:
    """Raise :class:`DataError`, ``message`` and the reason, for what reading a damaged file may raise.

    Args:
        message: which file, and what is wrong with it.
        also: further exceptions that it may raise.
    """
    damage: tuple[type[Exception], ...] = (OSError, *DAMAGED_ARCHIVE, *also)
    try:
        yield
    except damage as error:
        raise DataError(f"{message}: {one_line(error)}") from error


@contextlib.contextmanager
def part_of(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield the name of a file for another program to write; it takes the name ``path`` at the end."""
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
    """Rename a file to what nothing is called yet."""
    try:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:  # a file system without links, where the name is of an empty file for a moment
            path.touch(exist_ok=False)
            part.replace(path)
        else:
            part.unlink()
    except FileExistsError as error:
        raise _taken(path) from error


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder to fill; it takes the name ``path`` at the end, or is removed.

    Raises:
        ConfigError: something has taken the name.
    """
    part, descriptor = _free_part(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _empty(part)  # of what a process left that was killed
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
    """Lock a file or folder beside ``path`` that nobody else fills; returns it and its descriptor."""
    for number in itertools.count(1):
        part = path.with_name(f".{path.name}.part{'' if number == 1 else number}")
        if flags & os.O_DIRECTORY:
            part.mkdir(exist_ok=True)
        try:
            descriptor = _hold(part, flags, strict=False)
        except FileNotFoundError:
            if flags & os.O_CREAT:  # there is no folder for it
                raise
            continue  # it was renamed in this moment
        if descriptor is not None:
            return part, descriptor
    raise AssertionError("numbers are endless")


def _hold(path: Path, flags: int, *, strict: bool) -> int | None:
    """Open and lock; None where another process holds the lock, or the name has gone meanwhile.

    Args:
        strict: fail on a file system that has no locks.

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
    """Remove what writers of ``path`` that were killed have left beside it."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.part*"):
        with contextlib.suppress(OSError):
            descriptor = _hold(part, os.O_WRONLY, strict=False)
            if descriptor is not None:
                try:
                    part.unlink()
                finally:
                    os.close(descriptor)


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
        raise _taken(path)


def _taken(path: Path) -> ConfigError:
    return ConfigError(f"{path} exists; choose another name or remove it")


def require_folder(path: Path) -> None:
    """Raise :class:`ConfigError`, before anything is made for a file, where there is no folder for it."""
    if not path.parent.is_dir():
        raise ConfigError(f"expected a folder for {path.name}; make {path.parent} first")


def read_token(path: Path) -> str:
    """Read the API token in a file; where that is damaged, one that no site takes."""
    return path.read_text(errors="replace").strip()


@contextlib.contextmanager
def opened_archive(file: IO[bytes]) -> Iterator[Any]:
    """Open the arrays of an ``.npz`` file by name, none of them unpickled.

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
    """Lock a folder, made where it is missing; no other process can lock it meanwhile.

    Raises:
        BlockingIOError: another one does.
        OSError: it cannot be made.
    """
    descriptor = _held_folder(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _held_folder(folder: Path) -> int:
    """Lock a folder, with several tries: ``teach ls``, which only looks, holds it for a moment."""
    for last in [False] * (_TRIES - 1) + [True]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _hold(folder / "lock", os.O_RDWR | os.O_CREAT, strict=True)
        except (FileNotFoundError, FileExistsError):  # who held it removes it in this moment
            if last or (folder.exists() and not folder.is_dir()):
                raise
            descriptor = None
        if descriptor is not None:
            return descriptor
        time.sleep(_PAUSE_SECONDS)
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(folder))


def remove_held(folder: Path) -> None:
    """Remove a folder that this process holds. Who waits for it finds none, and never one half removed."""
    gone = folder.with_name(f".{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

"""Atomic file writes, folder locks, and safe reading of untrusted ``.npz`` files."""

import contextlib
import errno
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
from teacher.platforms import UNSUPPORTED

try:
    import fcntl
except ModuleNotFoundError as error:
    raise ImportError(UNSUPPORTED) from error

DAMAGED_ARCHIVE = (
    ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError, NotImplementedError, RuntimeError,
    SyntaxError, tokenize.TokenError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions, other than OSError, raised on reading a damaged ``.npz`` file or a misnamed ``.npy`` file."""

_TRIES, _PAUSE_SECONDS = 20, 0.01  # for locking a folder


@contextlib.contextmanager
def atomic_write(path: Path, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; when the ``with`` block exits, rename it to ``path``.

    The file is synced to disk (``fsync``). If the block fails, ``path`` is unchanged. Concurrent writers each
    get their own temporary file.

    Args:
        new: if True, never replace an existing file, even one created while the block runs.

    Raises:
        ConfigError: ``new`` is True and ``path`` exists.
    """
    with part_of(path, new=new) as part, part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the rename durable
    finally:
        os.close(folder)


@contextlib.contextmanager
def saved(path: Path, what: str, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file like :func:`atomic_write`, but convert an OSError to a one-line :class:`StorageError`.

    Args:
        what: description of the file for the error message, such as ``the plot rewards.png``.
    """
    try:
        with atomic_write(path, new=new) as file:
            yield file
    except OSError as error:
        raise StorageError(f"cannot write {what}: {error.strerror or error}") from error


@contextlib.contextmanager
def refusing_damage(message: str, *also: type[Exception]) -> Iterator[None]:
    """Turn exceptions caused by a missing or damaged file into a :class:`DataError`.

    Args:
        message: start of the error message, including the file's path; the original message is appended.
    """
    damage: tuple[type[Exception], ...] = (OSError, *DAMAGED_ARCHIVE, *also)
    try:
        yield
    except damage as error:
        raise DataError(f"{message}: {one_line(error)}") from error


@contextlib.contextmanager
def part_of(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file for another program to write to.

    When the ``with`` block exits, the file is renamed to ``path``; if the block fails, the file is removed.
    If ``new`` is True, an existing ``path`` is never replaced.
    """
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
    try:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:  # without hard links, an empty file reserves the name until the rename
            path.touch(exist_ok=False)
            part.replace(path)
        else:
            part.unlink()
    except FileExistsError as error:
        raise _taken(path) from error


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; when the ``with`` block exits, rename it to ``path``.

    The temporary folder is removed if the block fails.
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
    """Create and lock a temporary file or folder next to ``path``; return its path and file descriptor."""
    for number in itertools.count(1):
        part = path.with_name(f".{path.name}.part{'' if number == 1 else number}")
        if flags & os.O_DIRECTORY:
            part.mkdir(exist_ok=True)
        try:
            descriptor = _hold(part, flags, strict=False)
        except FileNotFoundError:
            if flags & os.O_CREAT:  # the parent folder is missing
                raise
            continue  # another process just renamed the temporary folder
        if descriptor is not None:
            return part, descriptor
    raise AssertionError("unreachable: itertools.count() never ends")


def _hold(path: Path, flags: int, *, strict: bool) -> int | None:
    """Open a file or folder, take a nonblocking lock on it, and return its file descriptor.

    Return None if another process holds the lock, or removed or renamed ``path`` before it was locked.

    Args:
        strict: True to raise OSError if the file system doesn't support locks; False to continue without a
            lock.
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
    """Remove temporary files left behind by processes that were killed while writing ``path``."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.part*"):
        with contextlib.suppress(OSError):
            descriptor = _hold(part, os.O_WRONLY, strict=False)
            if descriptor is not None:
                try:
                    part.unlink()
                finally:
                    os.close(descriptor)


def require_new(path: Path) -> None:
    """Check that ``path`` can be created, so that a command fails before it does any work."""
    require_folder(path)
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another name") from error
    if exists:
        raise _taken(path)


def _taken(path: Path) -> ConfigError:
    return ConfigError(f"{path} already exists; choose another name or remove it")


def require_folder(path: Path) -> None:
    """Raise :class:`ConfigError` if the parent folder of ``path`` is missing."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}; create it first")


def read_token(path: Path) -> str:
    """Return the API token stored in a file.

    Invalid UTF-8 bytes are replaced instead of raising an error here; the site then rejects the token.
    """
    return path.read_text(errors="replace").strip()


@contextlib.contextmanager
def opened_archive(file: IO[bytes]) -> Iterator[Any]:
    """Open an ``.npz`` file as a mapping from names to arrays, with pickles disabled.

    Raises:
        zipfile.BadZipFile: the file is truncated, or isn't an ``.npz`` file.
    """
    is_zip = zipfile.is_zipfile(file)  # also True for a zip file appended to another file
    file.seek(0)
    if not is_zip or file.read(2) != b"PK":  # NumPy would assume a pickle and suggest loading it
        raise zipfile.BadZipFile("the file is truncated, or not an .npz file")
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        yield archive


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for the ``with`` block, creating the folder if it is missing.

    Raises:
        BlockingIOError: another process has locked the folder.
        OSError: the folder can't be created.
    """
    descriptor = _held_folder(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _held_folder(folder: Path) -> int:
    """Lock a folder, with retries because ``teach ls`` locks it briefly; return the file descriptor."""
    for last in [False] * (_TRIES - 1) + [True]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _hold(folder / "lock", os.O_RDWR | os.O_CREAT, strict=True)
        except (FileNotFoundError, FileExistsError):  # the process that locked the folder is removing it
            if last or (folder.exists() and not folder.is_dir()):
                raise
            descriptor = None
        if descriptor is not None:
            return descriptor
        time.sleep(_PAUSE_SECONDS)
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(folder))


def remove_held(folder: Path) -> None:
    """Remove a folder that this process has locked; other processes never see it partly removed."""
    gone = folder.with_name(f".{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

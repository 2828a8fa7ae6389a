"""Copies folders that are in use, with a consistent snapshot of each SQLite file."""

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from human_feedback_site.feedback.backup.manifest import digest_of
from human_feedback_site.feedback.errors import BackupError

_SQLITE = b"SQLite format 3\0"
_BESIDE = ("-wal", "-shm", "-journal", "-copy")
_UNFINISHED = re.compile(r"\..*\.part\d*")  # temporary name of a file that is still being written


def copy_folder(source: Path, target: Path) -> int:
    """Copy the files of a folder that may be in use, and return the number of files copied.

    Symbolic links are followed. Files that are deleted or renamed during the copy are skipped.
    """
    count = 0
    for path in _files(source):
        copy = target / path.relative_to(source)
        try:
            is_sqlite = _is_sqlite(path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if is_sqlite:
                copy_sqlite(path, copy)
            else:
                shutil.copy2(path, copy)
        except FileNotFoundError:
            continue
        count += 1
    return count


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files to copy, following symbolic links.

    Unfinished files are skipped, as are SQLite's ``-wal``, ``-shm`` and ``-journal`` files, because the
    snapshot of a database already includes their changes, and a run's ``-copy`` of its ledger.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(parent)
        if real in seen:  # a symbolic link to a folder already visited
            folders.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            is_beside = any(name.endswith(end) and name.removesuffix(end) in names for end in _BESIDE)
            path = Path(parent, name)
            if not is_beside and not _UNFINISHED.fullmatch(name) and path.is_file():
                yield path


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a consistent snapshot of a SQLite file that may be in use, and check the copy.

    On a network file system, a run holds its ledger for as long as it lasts. Then its own recent copy of the
    ledger is used, which the run makes every minute and before each checkpoint.
    """
    copy = source.with_name(f"{source.name}-copy")
    patience = 0.5 if copy.exists() else 5.0
    try:
        address = f"{source.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=patience)) as live:
            live.isolation_level = None
            live.execute("BEGIN")
            live.execute("SELECT 1 FROM sqlite_master").fetchall()  # backup() would wait for a lock forever
            copy_connection(live, target)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY and copy.exists():
            part = target.with_name(f".{target.name}.part")
            shutil.copyfile(copy, part)  # whole, even if the run replaces it meanwhile
            copy_sqlite(part, target)
            part.unlink()
            return
        raise BackupError(f"{source} cannot be copied: {error}") from error


def copy_connection(live: sqlite3.Connection, target: Path) -> None:
    """Copy an open connection's database, or its transaction's snapshot, to a file, and check the copy."""
    with closing(sqlite3.connect(target)) as copy:
        live.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise BackupError(f"The copy of the SQLite file {target.name} is damaged: {found}")


def check_room(source: Path, target: Path) -> None:
    """Raise BackupError if ``target`` has files that differ from the backup's."""
    for path in _all_files(target):
        name = path.relative_to(target)
        if not _is_same(source / name, path):
            raise BackupError(
                f"{target} must be an empty folder, but contains {name}; move its contents elsewhere first"
            )


def _is_same(one: Path, other: Path) -> bool:
    if not one.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    return digest_of(one) == digest_of(other)


def restore_folder(source: Path, target: Path) -> int:
    """Copy the backup's files to ``target`` and return the number of files.

    Call :func:`check_room` first. If run as root, the files get the same owner as ``target`` or, if
    ``target`` doesn't exist yet, as its nearest existing ancestor.
    """
    missing = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _copy_owner(folder, folder.parent)
    count = 0
    for path in _all_files(source):
        name = path.relative_to(source)
        for folder in reversed(name.parents[:-1]):
            (target / folder).mkdir(exist_ok=True)
            _copy_owner(target / folder, target)
        part = (target / name).with_name(f".{name.name}.part")
        shutil.copy2(path, part)
        _copy_owner(part, target)
        part.replace(target / name)
        count += 1
    return count


def _all_files(folder: Path) -> list[Path]:
    return [
        path for path in sorted(folder.rglob("*")) if path.is_file() and not _UNFINISHED.fullmatch(path.name)
    ]


def _copy_owner(path: Path, like: Path) -> None:
    """Set the owner and group of ``path`` to those of the path ``like``; do nothing unless run as root.

    This is for restores run as root to a volume that belongs to another user.
    """
    if os.geteuid() == 0:
        owner = like.stat()
        os.chown(path, owner.st_uid, owner.st_gid)

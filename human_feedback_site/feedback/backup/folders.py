"""Copying folders that are in use: SQLite files as one state of theirs, everything else as it is."""

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
_LOG_OF_WRITES = ("-wal", "-shm", "-journal")
_HALF = re.compile(r"\..*\.part\d*")  # a file that its writer has not named yet


def copy_folder(source: Path, target: Path) -> int:
    """Copy the files of a folder, links followed, while they are in use; returns how many.

    What a program deletes or renames meanwhile is as if it had never been there.
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
    """Yield files; not what is half written, and not the log of a SQLite file, whose copy has it inside."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(parent)
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            is_log = any(name.endswith(end) and name.removesuffix(end) in names for end in _LOG_OF_WRITES)
            path = Path(parent, name)
            if not is_log and not _HALF.fullmatch(name) and path.is_file():
                yield path


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy one state of a SQLite file that others may write to, and check the copy.

    Raises:
        BackupError: the file is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as live:
            copy_connection(live, target)
    except sqlite3.DatabaseError as error:
        raise BackupError(f"{source} cannot be copied: {error}") from error


def copy_connection(live: sqlite3.Connection, target: Path) -> None:
    """Copy what a connection sees, which in a transaction is one state, into a file that needs no other."""
    with closing(sqlite3.connect(target)) as copy:
        live.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise BackupError(f"The copy {target.name} of a SQLite file is damaged: {found}")


def check_room(source: Path, target: Path) -> None:
    """Refuse to restore where other files are; those of a restoration that was cut off are the same.

    Raises:
        BackupError: one of them is not.
    """
    for path in _all_files(target):
        name = path.relative_to(target)
        if not _is_same(source / name, path):
            raise BackupError(f"Expected an empty folder {target}, found {name} there; move it away first")


def _is_same(one: Path, other: Path) -> bool:
    if not one.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    return digest_of(one) == digest_of(other)


def restore_folder(source: Path, target: Path) -> int:
    """Copy files to where :func:`check_room` found room; as root, for the owner of that folder."""
    missing = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _give(folder, folder.parent)
    count = 0
    for path in _all_files(source):
        name = path.relative_to(source)
        for folder in reversed(name.parents[:-1]):
            (target / folder).mkdir(exist_ok=True)
            _give(target / folder, target)
        part = (target / name).with_name(f".{name.name}.part")
        shutil.copy2(path, part)
        _give(part, target)
        part.replace(target / name)
        count += 1
    return count


def _all_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not _HALF.fullmatch(path.name)]


def _give(path: Path, like: Path) -> None:
    """As root, who restores into a volume of another user's, let what was made belong to that one."""
    if os.geteuid() == 0:
        owner = like.stat()
        os.chown(path, owner.st_uid, owner.st_gid)

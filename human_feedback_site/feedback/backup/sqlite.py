"""Backup and restore of the embedded site's SQLite database."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from django.db import connections

from human_feedback_site.feedback.backup.folders import copy_connection
from human_feedback_site.feedback.backup.manifest import Database, Table
from human_feedback_site.feedback.backup.postgresql import MADE_BY_MIGRATIONS, NEEDED_CLIPS, keys_in
from human_feedback_site.feedback.errors import BackupError

NAME = "site.sqlite3"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"


def path_of_database() -> Path:
    """Return the path of the SQLite database, from Django's settings."""
    return Path(str(connections["default"].settings_dict["NAME"]))


def dump(folder: Path, migrations: Mapping[str, str]) -> tuple[Database, set[str]]:
    """Copy a snapshot of the database; return a description, and the keys of clips in use."""
    folder.mkdir()
    with closing(sqlite3.connect(f"{path_of_database().as_uri()}?mode=ro", uri=True)) as live:
        live.isolation_level = None
        live.execute("BEGIN")
        expected = _rows(live)
        copy_connection(live, folder / NAME)
    with closing(sqlite3.connect(folder / NAME)) as copy:
        rows = _rows(copy)
        if rows != expected:
            raise BackupError(
                f"The copy of {path_of_database()} has different row counts than the original; try again"
            )
        needed = copy.execute(NEEDED_CLIPS).fetchall()
    tables = {name: Table((), count) for name, count in rows.items()}
    return Database("sqlite", tables, migrations), keys_in(needed)


def first_row() -> str | None:
    """Return the name of a nonempty table, or None if all are empty or the database doesn't exist."""
    path = path_of_database()
    if not path.exists():
        return None
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as live:
        return next((name for name, n in _rows(live).items() if n and name not in MADE_BY_MIGRATIONS), None)


def load(folder: Path, database: Database) -> None:
    """Copy the backup's database to the path in the settings, atomically replacing any existing file."""
    path = path_of_database()
    connections["default"].close()
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(f"{(folder / NAME).resolve().as_uri()}?mode=ro", uri=True)) as kept:
        copy_connection(kept, part)
        if _rows(kept) != {name: table.rows for name, table in database.tables.items()}:
            raise BackupError(
                f"{folder / NAME} has different row counts than the manifest; the database is unchanged"
            )
    part.chmod(0o600)
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    for end in ("-wal", "-shm"):  # left by an empty database
        path.with_name(path.name + end).unlink(missing_ok=True)
    part.replace(path)


def _rows(connection: sqlite3.Connection) -> dict[str, int]:
    names = [name for (name,) in connection.execute(_TABLES)]
    return {
        name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608 - no input
        for name in names
    }

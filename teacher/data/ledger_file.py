"""Functions that open a ledger's SQLite file for writing or reading."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from teacher.errors import DataError

PATIENCE_SECONDS = 60.0
"""Timeout in seconds for locks held by other processes that are creating or reading the same file."""

_RETRY_SECONDS = 0.005
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_APPLICATION_ID = 0x52_4C_54_4C  # "RLTL": identifies ledgers among SQLite files
_VERSION = 1
_SCHEMA = (
    """CREATE TABLE comparison (
        id INTEGER PRIMARY KEY,
        uuid BLOB NOT NULL UNIQUE,
        phase TEXT NOT NULL,
        step INTEGER NOT NULL,
        status TEXT NOT NULL,
        decision TEXT,
        probability REAL,
        seq INTEGER
    ) STRICT""",
    # A separate table, so that a status change does not rewrite segments.
    """CREATE TABLE pair (
        comparison INTEGER PRIMARY KEY REFERENCES comparison (id),
        first BLOB NOT NULL,
        second BLOB NOT NULL
    ) STRICT""",
    "CREATE TABLE feed (cursor INTEGER NOT NULL) STRICT",
    "INSERT INTO feed VALUES (0)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_VERSION}",
)


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open a ledger for writing; create it if the file is missing or empty.

    A file that is not a ledger is never changed.

    Raises:
        DataError: the file is damaged or not writable, or not a ledger of a supported version.
    """
    with explained(path):
        connection = _connect(path.absolute().as_uri())
        try:
            for setting in ("synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {setting}")
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # the write lock keeps other processes from creating it
                if _is_empty(connection, path):
                    _make_tables(connection)
            _log_ahead(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger for reading, even while a run is writing to it.

    A file without tables is read as an empty ledger.

    Raises:
        DataError: the file is missing, damaged or unreadable, or not a ledger of a supported version.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; expected the ledger file of a run")
    with explained(path):
        # A run's latest writes are in the -wal file. If there is none, SQLite creates an empty one for
        # reading, which only a connection with write access removes again.
        if _size(path, "-wal"):
            return _reading(path, "mode=ro")
        try:
            return _reading(path, "mode=rw")
        except sqlite3.OperationalError as error:
            is_whole = not _size(path, "-wal") and not _size(path, "-journal")
            if not is_whole or error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE:
                raise
        return _reading(path, "mode=ro&immutable=1")  # no file can be created here, so no run is writing


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert SQLite errors in the ``with`` block to one-line DataErrors that name the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise DataError(
            f"{path} cannot be used: {error}; check its folder's permissions and the free disk space, then "
            "try again"
        ) from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is damaged or not a ledger: {error}") from error


def _connect(address: str) -> sqlite3.Connection:
    return sqlite3.connect(
        address, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def _reading(path: Path, mode: str) -> sqlite3.Connection:
    """Return a read-only connection to the file, or to an empty in-memory ledger if it has no tables yet."""
    connection = _connect(f"{path.absolute().as_uri()}?{mode}")
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        with connection:  # a single snapshot, because a run may be creating the tables
            is_empty = _is_empty(connection, path)
    except BaseException:
        connection.close()
        raise
    if is_empty:
        connection.close()
        connection = _connect(":memory:")
        _make_tables(connection)
    return connection


def _is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Return True if the database has no tables yet. Raise DataError if it is not a supported ledger."""
    application_id, version, tables = (
        connection.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if application_id == 0 and tables == 0:
        return True
    if application_id != _APPLICATION_ID:
        raise DataError(f"{path} is not a ledger; expected the ledger file of a run")
    if version != _VERSION:
        raise DataError(
            f"{path} has format version {version}, but this version of RL-Teacher only reads format "
            f"{_VERSION}; use the version that wrote the file"
        )
    return False


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging (WAL), so that readers and the writer don't block each other.

    Retry, because SQLite fails immediately if another connection is switching at the same time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _size(path: Path, ending: str) -> int:
    """Return the size of the ledger's ``-wal`` or ``-journal`` file; 0 if it doesn't exist."""
    try:
        return path.with_name(path.name + ending).stat().st_size
    except FileNotFoundError:
        return 0

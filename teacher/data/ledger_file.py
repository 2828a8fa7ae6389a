"""The SQLite file of a ledger: made or opened by a run, or only read by whoever looks at one."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from teacher.errors import DataError

PATIENCE_SECONDS = 60.0
"""How long to wait for others who make the same file, or who read it while it is made."""

_RETRY_SECONDS = 0.005
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_APPLICATION_ID = 0x52_4C_54_4C  # "RLTL": tells a ledger from any other SQLite file
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
    # Apart from comparison, so that a change of status rewrites no segment.
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
    """Open a ledger, made where there is none or an empty file; refuse any other file, unchanged.

    Raises:
        DataError: the file is damaged, not a ledger of this version, or cannot be written.
    """
    with explained(path):
        connection = _connect(path.absolute().as_uri())
        try:
            for setting in ("synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {setting}")
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # from here on nobody else can make it
                if _is_empty(connection, path):
                    _make_tables(connection)
            _log_ahead(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger that a run may be writing, without changing it; a file without tables is read as empty.

    Raises:
        DataError: there is no such file, it is damaged or not a ledger of this version, or cannot be read.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; expected the ledger of a run")
    with explained(path):
        # What a run has written lies in the -wal file. Without one SQLite makes an empty one to read, which
        # only a connection that may write takes away again.
        if _size(path, "-wal"):
            return _reading(path, "mode=ro")
        try:
            return _reading(path, "mode=rw")
        except sqlite3.OperationalError as error:
            is_whole = not _size(path, "-wal") and not _size(path, "-journal")
            if not is_whole or error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE:
                raise
        return _reading(path, "mode=ro&immutable=1")  # where nothing can be made, nobody writes either


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as :class:`DataError`, one line that names the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise DataError(
            f"{path} cannot be used: {error}; free space or repair its folder, then resume"
        ) from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is damaged or not a ledger: {error}") from error


def _connect(address: str) -> sqlite3.Connection:
    return sqlite3.connect(
        address, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def _reading(path: Path, mode: str) -> sqlite3.Connection:
    """Connect without changing anything; to an empty ledger in memory where there are no tables yet."""
    connection = _connect(f"{path.absolute().as_uri()}?{mode}")
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        with connection:  # from one moment: a run may be about to make the tables
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
    """Return whether there are no tables yet. Raises :class:`DataError` for another file or version."""
    application_id, version, tables = (
        connection.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if application_id == 0 and tables == 0:
        return True
    if application_id != _APPLICATION_ID:
        raise DataError(f"{path} is not a ledger of this program; expected one made by a run")
    if version != _VERSION:
        raise DataError(f"{path} has version {version}; this program reads version {_VERSION}")
    return False


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Have changes written to a log, so that readers and the run do not wait for each other.

    Where another connection does the same in this moment, SQLite does not wait but fails.
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
    """Return the bytes of a file that SQLite keeps beside its own; 0 where there is none."""
    try:
        return path.with_name(path.name + ending).stat().st_size
    except FileNotFoundError:
        return 0

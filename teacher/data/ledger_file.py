"""Functions that open a ledger's SQLite file for writing or reading."""

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from teacher.errors import DataError
from teacher.platforms import is_local

PATIENCE_SECONDS = 60.0
"""Timeout in seconds for locks held by other processes that are creating or reading the same file."""

_RETRY_SECONDS = 0.005
_HELD_SECONDS = 3.0  # timeout for the lock of a run that holds the file for as long as it lasts
_NO_SHARED_MEMORY = (
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMLOCK,
    sqlite3.SQLITE_IOERR_SHMMAP,
)
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_BESIDE = ("-wal", "-shm", "-journal")
_APPLICATION_ID = 0x52_4C_54_4C  # "RLTL": identifies ledgers among SQLite files
_PAIRS_ONLY = 1  # version of a ledger that has only pairs, so that 0.1.0 can read it
VERSION = 2
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
    f"PRAGMA user_version = {_PAIRS_ONLY}",
)
_OTHER_KINDS = (
    """CREATE TABLE question (
        id INTEGER PRIMARY KEY REFERENCES comparison (id),
        kind TEXT NOT NULL,
        known TEXT
    ) STRICT""",
    """CREATE TABLE item (
        question INTEGER NOT NULL REFERENCES question (id),
        position INTEGER NOT NULL,
        segment BLOB NOT NULL,
        PRIMARY KEY (question, position)
    ) STRICT""",
    # The current answer of each labeler; seq is that of the first feed item with it.
    """CREATE TABLE answer (
        question INTEGER NOT NULL REFERENCES question (id),
        labeler INTEGER NOT NULL,
        answer TEXT NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (question, labeler)
    ) STRICT""",
    f"PRAGMA user_version = {VERSION}",
)


def open_to_write(path: Path | None) -> sqlite3.Connection:
    """Open a ledger for writing; create it if the file is missing or empty, or in memory if there is no file.

    A file that is not a ledger is never changed. On a network file system, whose machines don't share memory,
    the ledger has no write-ahead log: the connection keeps an exclusive lock until it is closed, and readers
    use :func:`write_copy`'s copy.

    Raises:
        DataError: the file is damaged or not writable, or not a ledger of a supported version, or another
            process holds it.
    """
    if path is None:
        connection = _connect(":memory:")
        _make_tables(connection)
        return connection
    with explained(path):
        if is_local(path.absolute().parent):
            try:
                return _writing(path)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode not in _NO_SHARED_MEMORY:
                    raise
        return _writing(path, held=True)


def _writing(path: Path, *, held: bool = False) -> sqlite3.Connection:
    """Open a ledger for writing, with a write-ahead log or, if ``held``, with a lock until it is closed."""
    connection = _connect(path.absolute().as_uri(), _HELD_SECONDS if held else PATIENCE_SECONDS)
    try:
        settings = (
            *(("locking_mode = EXCLUSIVE",) if held else ()),
            "synchronous = FULL",
            "foreign_keys = ON",
        )
        for setting in settings:
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN EXCLUSIVE" if held else "BEGIN IMMEDIATE")
        with connection:  # the write lock keeps other processes from creating it
            if _is_empty(connection, path):
                _make_tables(connection)
        if held:
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)  # left by a failed attempt to share it
        else:
            _log_ahead(connection)
            connection.execute("SELECT 1 FROM feed").fetchall()  # the first use of the shared memory
    except BaseException:
        connection.close()
        raise
    return connection


def add_other_kinds(connection: sqlite3.Connection) -> None:
    """Add the tables for questions other than pairs; do nothing if they are there."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < VERSION:
        for statement in _OTHER_KINDS:
            connection.execute(statement)


def is_held(connection: sqlite3.Connection) -> bool:
    """Return True if no other process can read the ledger that :func:`open_to_write` opened."""
    return bool(connection.execute("PRAGMA locking_mode").fetchone() == ("exclusive",))


def path_of_copy(path: Path) -> Path:
    """Return the path of the copy that a run makes of a ledger that only it can open."""
    return path.with_name(f"{path.name}-copy")


def write_copy(connection: sqlite3.Connection, path: Path) -> None:
    """Replace the copy of a ledger that only this process can open."""
    copy = path_of_copy(path)
    part = copy.with_name(f".{copy.name}.part")
    part.unlink(missing_ok=True)
    connection.execute("VACUUM INTO ?", (str(part),))
    part.replace(copy)


class LedgerReader:
    """Reads a ledger, even while a run is writing to it; no file in its folder changes.

    Each query opens the file again, so a reader never stands in the way of a process that writes to it. A
    file without tables is read as an empty ledger.

    Raises:
        DataError: the file is missing, damaged or unreadable, or not a ledger of a supported version.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise DataError(f"{path} does not exist; expected the ledger file of a run")
        self._path = path
        self._is_local = is_local(path.absolute().parent)
        self._copy: sqlite3.Connection | None = None
        self._copied: tuple[Path, _Stamp] | None = None
        try:
            self.rows("SELECT 1 FROM feed", ())
        except BaseException:
            self.close()
            raise

    def rows(self, query: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with explained(self._path):
            while True:
                before = _stamp(self._path)
                try:
                    rows = self._rows_at(before, query, parameters)
                except sqlite3.DatabaseError:
                    if not self._needs_no_lock(before) or _stamp(self._path) == before:
                        raise
                else:
                    if not self._needs_no_lock(before) or _stamp(self._path) == before:
                        return rows

    def _needs_no_lock(self, stamp: "_Stamp") -> bool:
        """Return True if no process has the ledger open, which a network file system's files don't tell."""
        return self._is_local and _is_at_rest(stamp)

    def close(self) -> None:
        """Remove what was kept for the next query."""
        if self._copy is not None:
            self._copy.close()
            self._copy = self._copied = None

    def _rows_at(self, stamp: "_Stamp", query: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        if self._copied == (self._path, stamp):
            return self._rows_of_temporary(self._path, query, parameters)
        # Locks would need a -shm file beside a ledger that nobody holds. With readonly_shm, that of a killed
        # run stays as it is.
        mode = "mode=ro&immutable=1" if self._needs_no_lock(stamp) else "mode=ro&readonly_shm=1"
        try:
            with contextlib.closing(_reading(self._path, mode)) as connection:
                return connection.execute(query, parameters).fetchall()
        except sqlite3.OperationalError as error:
            code, copy = error.sqlite_errorcode, path_of_copy(self._path)
            if code & 0xFF == sqlite3.SQLITE_BUSY and copy.exists():
                return self._rows_of_temporary(copy, query, parameters)
            if code & 0xFF not in _NOT_WRITABLE and code not in _NO_SHARED_MEMORY:
                raise
        return self._rows_of_temporary(self._path, query, parameters)

    def _rows_of_temporary(
        self, path: Path, query: str, parameters: Sequence[object]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query of a temporary copy of the ledger or of its run's copy."""
        stamp = (path, _stamp(path))
        if self._copy is None or self._copied != stamp:
            self.close()
            self._copy, self._copied = _copied(path), stamp
        return self._copy.execute(query, parameters).fetchall()


_Stamp = tuple[tuple[int, int] | None, ...]


def _stamp(path: Path) -> _Stamp:
    """Return the size and modification time of the ledger and of each file of SQLite's beside it."""

    def of(path: Path) -> tuple[int, int] | None:
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns

    return of(path), *(of(path.with_name(path.name + ending)) for ending in _BESIDE)


def _is_at_rest(stamp: _Stamp) -> bool:
    """Return True if no process has the ledger open and its main file is complete.

    A process that has it open in WAL mode keeps a -wal and a -shm file, which the last one removes.
    """
    return not any(stamp[1:])


def _copied(path: Path) -> sqlite3.Connection:
    """Return a connection to a temporary copy of a ledger whose last writes SQLite must first recover."""
    with tempfile.TemporaryDirectory(prefix="rl-teacher-") as folder:  # the open file outlives its name
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        for ending in ("-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path.with_name(path.name + ending), f"{copy}{ending}")
        with contextlib.closing(_connect(copy.as_uri())) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        return _reading(copy, "mode=ro")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert SQLite errors in the ``with`` block to one-line DataErrors that name the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise DataError(
                f"{path} is in use by another process, perhaps on another machine; end that run first"
            ) from error
        raise DataError(
            f"{path} cannot be used: {error}; check its folder's permissions and the free disk space, then "
            "try again"
        ) from error
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is damaged or not a ledger: {error}") from error


def _connect(address: str, timeout: float = PATIENCE_SECONDS) -> sqlite3.Connection:
    return sqlite3.connect(address, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True)


def _reading(path: Path, mode: str) -> sqlite3.Connection:
    """Return a read-only connection to the file, or to an empty in-memory ledger if it has no tables yet."""
    timeout = PATIENCE_SECONDS if is_local(path.absolute().parent) else _HELD_SECONDS
    connection = _connect(f"{path.absolute().as_uri()}?{mode}", timeout)
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
    if not _PAIRS_ONLY <= version <= VERSION:
        raise DataError(
            f"{path} has format version {version}, but this version of RL-Teacher only reads format "
            f"{VERSION}; use the version that wrote the file"
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

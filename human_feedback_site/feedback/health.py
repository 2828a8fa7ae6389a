"""Readiness check of the site, and reasons why requests fail for the time being."""

import errno
import logging
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.faults import media_errors
from human_feedback_site.feedback.media.store import FolderMedia, media_store

logger = logging.getLogger(__name__)
CACHE_SECONDS = 2.0  # a result is reused for this long, so that frequent probes cost nothing
LOG_SECONDS = 10.0  # the same reason is logged at most once in this time
LEAST_FREE_BYTES = 16 * 2**20
_SECONDS = 2  # to wait for a lock or the media store
_AWAY: Final = "The database does not answer."
READ_ONLY: Final = "The database is read-only."
_FULL: Final = "The disk of the database is full."
_WRONG: Final = "SQLITE_ERROR"  # a statement that can't work, for example because a table is missing
_BUSY: Final = ("57014", "SQLITE_BUSY")  # waits for a lock
# Reasons by the beginnings of PostgreSQL's and SQLite's error codes.
_REASONS: Final = {
    "25006": READ_ONLY,
    "53100": _FULL,
    "53300": "The database has no free connections.",
    "SQLITE_READONLY": READ_ONLY,
    "SQLITE_FULL": _FULL,
    "SQLITE_IOERR": "The disk of the database has errors or is full.",
}
_DISK: Final = {
    errno.ENOSPC: "The disk is full.",
    errno.EDQUOT: "The disk quota is used up.",
    errno.EROFS: "The disk is read-only.",
}
_migrated = threading.Event()  # set once all migrations are applied; a running process gets no new ones
_checking = threading.Lock()


class _Last:
    checked_at = -CACHE_SECONDS
    obstacle: str | None = None
    logged: dict[str, float] = {}  # noqa: RUF012 (one for the process)


def temporary_reason(error: BaseException | None) -> str | None:
    """Return a one-line reason, without secrets, if the database or a disk fails for now."""
    if isinstance(error, MediaStoreError):
        return "The media store cannot be used."
    if isinstance(error, OSError):
        return _DISK.get(error.errno or 0)
    if not isinstance(error, Error):
        return None
    if "connection slots" in str(error) or "too many clients" in str(error):  # has no code
        return _REASONS["53300"]
    code = _code(error)
    known = next((reason for begin, reason in _REASONS.items() if code.startswith(begin)), None)
    is_away = isinstance(error, OperationalError | InterfaceError) and code != _WRONG
    return known or (_AWAY if is_away else None)


def log_once(reason: str, error: BaseException | None) -> None:
    """Log why requests fail, in one line and without a traceback, unless it was logged a moment ago."""
    now = time.monotonic()
    if now - _Last.logged.get(reason, -LOG_SECONDS) >= LOG_SECONDS:
        _Last.logged[reason] = now
        logger.error("%s %s", reason, " ".join(str(error).split()))


def obstacle() -> str | None:
    """Return a one-line reason that the site can't serve requests, or None if it can.

    The text contains no secrets. If a check is in progress, returns the result of the one before.
    """
    is_known = _Last.checked_at > -CACHE_SECONDS
    if not _checking.acquire(blocking=not is_known):
        return _Last.obstacle
    try:
        if time.monotonic() - _Last.checked_at >= CACHE_SECONDS:
            _Last.obstacle = _database_obstacle() or _store_obstacle()
            _Last.checked_at = time.monotonic()
        return _Last.obstacle
    finally:
        _checking.release()


def _database_obstacle() -> str | None:
    """Check that the database answers, is migrated and can be written.

    The check opens a new database connection, so that it fails within the connect timeout if the server
    hangs; a query on an existing connection would hang as well.
    """
    connection = connections.create_connection(DEFAULT_DB_ALIAS)
    try:
        unapplied = 0 if _migrated.is_set() else _unapplied_migrations(connection)
        if unapplied:
            return f"{unapplied} migration(s) are not applied; apply them with: python manage.py migrate"
        _migrated.set()
        _write(connection)
    except Error as error:
        if not _code(error).startswith(_BUSY):
            reason = temporary_reason(error) or _AWAY
            log_once(f"Not ready: {reason}", error)
            return f"{reason} See the site's log."
    finally:
        connection.close()
    if connection.vendor == "sqlite":
        return _disk_obstacle(Path(connection.settings_dict["NAME"]).parent)
    return None


def _unapplied_migrations(connection: BaseDatabaseWrapper) -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _write(connection: BaseDatabaseWrapper) -> None:
    """Commit a change that changes nothing: whether the disk has room shows only when it is committed."""
    change = (
        "UPDATE django_migrations SET applied = applied WHERE id = (SELECT MIN(id) FROM django_migrations)"
    )
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA busy_timeout = 100")
            cursor.execute(change)
        else:
            cursor.execute(f"BEGIN; SET LOCAL statement_timeout = '{_SECONDS}s'; {change}; COMMIT")


def _store_obstacle() -> str | None:
    """Check that clips can be written to the folder, or listed in the S3 bucket."""
    store = media_store()
    try:
        if not isinstance(store, FolderMedia):
            store.probe(_SECONDS)
            return None
        with media_errors(f"the folder {store.root}"):
            if not store.root.exists():  # until the first clip
                return None
            with tempfile.TemporaryFile(dir=store.root) as file:
                file.write(b"x")
    except MediaStoreError as error:
        log_once("Not ready:", error)
        return "The media store cannot be used. See the site's log."
    return _disk_obstacle(store.root)


def _disk_obstacle(folder: Path) -> str | None:
    free = shutil.disk_usage(folder).free
    if free >= LEAST_FREE_BYTES:
        return None
    log_once("Not ready:", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)))
    return f"The site's disk has only {free // 2**20} MB left."


def _code(error: Error) -> str:
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None) or ""

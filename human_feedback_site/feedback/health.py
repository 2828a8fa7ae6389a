"""Readiness check of the site: database connection and migrations."""

import logging
import threading

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

logger = logging.getLogger(__name__)
_migrated = threading.Event()  # set once all migrations are applied; a running process gets no new ones


def obstacle() -> str | None:
    """Return a one-line reason that the site can't serve requests, or None if it can.

    The text contains no secrets. The check opens a new database connection, so that it fails within the
    connect timeout if the server hangs; a query on an existing connection would hang as well.
    """
    connection = connections.create_connection(DEFAULT_DB_ALIAS)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        unapplied = 0 if _migrated.is_set() else _unapplied_migrations(connection)
    except Error as error:
        logger.warning("not ready because the database can't be queried: %s", error)
        return "The database does not answer; see the site's log for the reason."
    finally:
        connection.close()
    if unapplied:
        return f"{unapplied} migration(s) are not applied; apply them with: python manage.py migrate"
    _migrated.set()
    return None


def _unapplied_migrations(connection: BaseDatabaseWrapper) -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))

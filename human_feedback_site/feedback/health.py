"""Whether the site could do its work now."""

import logging
import threading

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

logger = logging.getLogger(__name__)
_migrated = threading.Event()  # from then on: no code that is new comes into a process that runs


def obstacle() -> str | None:
    """Return in one line without secrets what keeps the site from working; None where nothing does.

    It asks on a connection of its own. Whether one can be had is the question, and it is answered in the time
    that PostgreSQL is given to connect; an old connection to a server that hangs would hang with it.
    """
    connection = connections.create_connection(DEFAULT_DB_ALIAS)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        unapplied = 0 if _migrated.is_set() else _unapplied_migrations(connection)
    except Error as error:
        logger.warning("not ready, the database does not answer: %s", error)
        return "The database does not answer; the site's log says why."
    finally:
        connection.close()
    if unapplied:
        return f"{unapplied} migration(s) are not applied; apply them with: python manage.py migrate"
    _migrated.set()
    return None


def _unapplied_migrations(connection: BaseDatabaseWrapper) -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))

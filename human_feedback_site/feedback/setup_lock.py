"""Lock that lets only one process at a time migrate the database and create the first admin."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from django.db import DEFAULT_DB_ALIAS, connections

# "TEAC". Advisory locks with two integers never collide with the one-integer locks of labelers.
_KEY = (0x5445_4143, 1)


@contextlib.contextmanager
def setting_up(database: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Context manager that waits for the database's setup lock and holds it during the ``with`` block.

    For PostgreSQL, this is an advisory lock. For SQLite, it's a lock on the database's folder, because the
    database file may not exist yet.
    """
    connection = connections[database]
    if connection.vendor == "postgresql":
        # Lock on a separate connection, because the setup begins and ends transactions on the main one.
        with contextlib.closing(connection.copy()) as other:
            other.set_autocommit(False)
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", _KEY)
            yield
        return
    try:
        folder = os.open(Path(connection.settings_dict["NAME"]).parent, os.O_RDONLY)
    except OSError:  # Django will report the missing or unreadable folder
        yield
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)

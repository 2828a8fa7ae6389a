"""One process at a time sets a site up: Django's migrations and the first admin expect to be alone."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from django.db import DEFAULT_DB_ALIAS, connections

_KEY = (0x5445_4143, 1)  # "TEAC"; two numbers are never mixed up with the one that labelers wait by


@contextlib.contextmanager
def setting_up(database: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Wait until nobody else sets this database up, and have others wait; it may not exist yet."""
    connection = connections[database]
    if connection.vendor == "postgresql":
        # A connection of its own: what is done meanwhile begins and ends transactions.
        with contextlib.closing(connection.copy()) as other:
            other.set_autocommit(False)
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", _KEY)
            yield
        return
    try:
        folder = os.open(Path(connection.settings_dict["NAME"]).parent, os.O_RDONLY)
    except OSError:  # Django says what is wrong with it
        yield
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)

"""``manage.py migrate``: Django's command with a lock, and a shortcut for empty databases."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management import CommandError
from django.core.management.commands.migrate import Command as DjangoCommand
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from human_feedback_site.feedback.backup.write import newer_migration
from human_feedback_site.feedback.services.decisions import complete_labels

_PARTIAL = ("app_label", "check_unapplied", "fake", "fake_initial", "plan", "prune")


class Command(DjangoCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        with setting_up(options["database"]):
            connection = connections[options["database"]]
            is_partial = any(options[name] for name in _PARTIAL)
            if not is_partial and not connection.introspection.table_names():
                make_tables(connection)
                if options["verbosity"] >= 1:
                    self.stdout.write("The database was empty; all tables were created.")
            _refuse_other_releases(connection)
            super().handle(*args, **options)
            if not is_partial:
                complete_labels()


def _refuse_other_releases(connection: BaseDatabaseWrapper) -> None:
    """Raise CommandError if a later version migrated the database, or a version between two releases."""
    if newer := newer_migration(connection):
        raise CommandError(
            f"The database was migrated by a newer version of RL-Teacher (migration {newer}); "
            "use that version."
        )
    applied = MigrationRecorder(connection).applied_migrations().keys()
    for (_, name), migration in sorted(MigrationLoader(None).disk_migrations.items()):
        known = [old for old in migration.replaces if old in applied]
        if known and len(known) < len(migration.replaces):
            release = name.partition("_")[2].replace("_", ".")
            raise CommandError(
                f"The database was migrated by a version before {release} (migration {known[-1][1]}); "
                f"migrate it with {release} first."
            )


def make_tables(connection: BaseDatabaseWrapper) -> None:
    """Create the latest schema's tables in an empty database, and mark all migrations as applied.

    This is ten times faster than running the migrations one by one. Data migrations are skipped, because
    there are no rows yet.
    """
    loader = MigrationLoader(connection)
    recorder = MigrationRecorder(connection)
    with connection.schema_editor() as editor:  # all in one transaction
        editor.create_model(recorder.Migration)
        for model in loader.project_state().apps.get_models():
            if model._meta.can_migrate(connection):
                editor.create_model(model)
        for key, migration in sorted(loader.graph.nodes.items()):
            for app, name in (*migration.replaces, key):
                recorder.record_applied(app, name)


# "TEAC". Advisory locks with two integers never collide with the one-integer locks of labelers.
_KEY = (0x5445_4143, 1)


@contextlib.contextmanager
def setting_up(database: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Hold the database's setup lock: an advisory lock in PostgreSQL, for SQLite a lock on its folder."""
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

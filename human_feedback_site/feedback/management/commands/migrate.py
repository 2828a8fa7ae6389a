"""``manage.py migrate``: Django's, by one process at a time, and quick where there is nothing yet."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from human_feedback_site.feedback.setup_lock import setting_up

_PARTIAL = ("app_label", "check_unapplied", "fake", "fake_initial", "plan", "prune")


class Command(migrate.Command):
    """Bring the database up to date; a second process waits, and then finds nothing to do."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        with setting_up(options["database"]):
            connection = connections[options["database"]]
            is_partial = any(options[name] for name in _PARTIAL)
            if not is_partial and not connection.introspection.table_names():
                make_tables(connection)
                if options["verbosity"] >= 1:
                    self.stdout.write("The database was empty: all its tables are made.")
            super().handle(*args, **options)


def make_tables(connection: BaseDatabaseWrapper) -> None:
    """Make the tables that all migrations come to, at once; one by one they take ten times as long.

    What migrations do to rows is left out, for there are none.
    """
    loader = MigrationLoader(connection)
    recorder = MigrationRecorder(connection)
    with connection.schema_editor() as editor:  # all in one transaction
        editor.create_model(recorder.Migration)
        for model in loader.project_state().apps.get_models():
            if model._meta.can_migrate(connection):
                editor.create_model(model)
        for app, name in sorted(loader.graph.nodes):
            recorder.record_applied(app, name)

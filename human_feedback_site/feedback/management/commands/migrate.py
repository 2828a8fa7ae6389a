"""``manage.py migrate``: Django's, by one process at a time."""

from typing import Any

from django.core.management.commands import migrate

from human_feedback_site.feedback.setup_lock import setting_up


class Command(migrate.Command):
    """Bring the database up to date; a second process waits, and then finds nothing to do."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        with setting_up(options["database"]):
            super().handle(*args, **options)

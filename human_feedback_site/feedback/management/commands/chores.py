"""``manage.py chores``: all chores once, for cron or by hand where Celery does not run."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, ProgrammingError

from human_feedback_site.feedback.services.chores import CHORES


class Command(BaseCommand):
    """Do the chores."""

    help = (
        "Do every chore once: go on with deletions of experiments, forget what absent trainers wait for, "
        "delete leases and sessions that ended long ago, and clips of experiments that finished more than "
        "MEDIA_KEEP_DAYS ago."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do each, whatever becomes of the others; raises ``CommandError`` where one failed."""
        failed = []
        for name, chore in CHORES.items():
            try:
                self.stdout.write(f"{name}: {chore()}")
            except (OperationalError, ProgrammingError):
                raise  # the database is not ready for any of them
            except Exception as error:
                failed.append(name)
                self.stderr.write(f"{name}: failed, {type(error).__name__}: {error}")
        if failed:
            raise CommandError(f"Of {len(CHORES)} chores, {len(failed)} failed: {', '.join(failed)}.")

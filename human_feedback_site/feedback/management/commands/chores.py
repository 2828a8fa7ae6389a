"""``manage.py chores``: run all periodic maintenance tasks once, for sites without Celery."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, ProgrammingError

from human_feedback_site.feedback.services.chores import CHORES


class Command(BaseCommand):
    help = (
        "Run all periodic maintenance tasks once: continue experiment deletions, clear the waiting status of "
        "absent trainers, re-estimate labeler reliability, send webhooks' events, and "
        "delete expired leases, sessions, sign-in counts, and clips of experiments that finished more than "
        "MEDIA_KEEP_DAYS ago."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        failed = []
        for name, chore in CHORES.items():
            try:
                self.stdout.write(f"{name}: {chore()}")
            except (OperationalError, ProgrammingError):
                raise  # the database isn't ready, so the other tasks would fail as well
            except Exception as error:
                failed.append(name)
                self.stderr.write(f"{name}: failed with {type(error).__name__}: {error}")
        if failed:
            raise CommandError(
                f"{len(failed)} of {len(CHORES)} maintenance tasks failed: {', '.join(failed)}."
            )

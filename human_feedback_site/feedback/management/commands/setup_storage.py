"""``manage.py setup_storage``: make the media store ready, and prove that it is."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.setup import set_up
from human_feedback_site.feedback.media.store import media_store


class Command(BaseCommand):
    """Set up TEACHER_STORAGE; doing it again changes nothing."""

    help = (
        "Make the bucket that TEACHER_STORAGE names if there is none, let pages of TEACHER_PUBLIC_URL read "
        "from it, and check that it is private and that clips can be kept, linked and deleted. A folder only "
        "has to be writable."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument(
            "--wait", type=float, default=60.0, help="seconds that a store may take to start (default: 60)"
        )

    def handle(self, *args: Any, wait: float, **options: Any) -> None:
        """Print a line for each step; raises ``CommandError`` where the store cannot be used."""
        try:
            for line in set_up(media_store(), wait):
                self.stdout.write(line)
        except MediaStoreError as error:
            raise CommandError(str(error)) from None

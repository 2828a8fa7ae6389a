"""``manage.py setup_storage``: create and check the media store."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.setup import set_up
from human_feedback_site.feedback.media.store import media_store


class Command(BaseCommand):
    help = (
        "Create the bucket in TEACHER_STORAGE if it doesn't exist, allow pages on TEACHER_PUBLIC_URL to read "
        "from it, and check that it is private and that clips can be stored, linked and deleted. If "
        "TEACHER_STORAGE is a folder, only check that it is writable."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--wait",
            type=float,
            default=60.0,
            help="seconds to wait for the store to start (default: 60)",
        )

    def handle(self, *args: Any, wait: float, **options: Any) -> None:
        try:
            for line in set_up(media_store(), wait):
                self.stdout.write(line)
        except MediaStoreError as error:
            raise CommandError(str(error)) from None

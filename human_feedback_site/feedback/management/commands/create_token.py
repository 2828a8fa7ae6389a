"""``manage.py create_token USER``: a trainer's key to the API."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from human_feedback_site.feedback.management.commands import DatabaseCommand
from human_feedback_site.feedback.services.accounts import create_token


class Command(DatabaseCommand):
    """Make a token and print it; it cannot be read again."""

    help = "Make an API token of a staff user and print it. Give it to the trainer as TEACHER_TOKEN."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("user", help="name of the staff user that the trainer acts for")
        parser.add_argument(
            "--name", default="trainer", help="what the token is used for, shown in the admin"
        )

    def handle(self, *args: Any, user: str, name: str, **options: Any) -> str:
        """Return the token, which Django prints."""
        owner = User.objects.filter(username=user).first()
        if owner is None:
            raise CommandError(f"There is no user {user!r}; make one with: manage.py createsuperuser")
        if not owner.is_staff or not owner.is_active:
            raise CommandError(f"{user!r} must be active and staff to use the API; change that in the admin.")
        return create_token(owner, name)

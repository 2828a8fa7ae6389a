"""``manage.py create_token USER``: create an API token for a trainer."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from human_feedback_site.feedback.models import validate_name
from human_feedback_site.feedback.services.accounts import TOKEN_DAYS, create_token

MOST_DAYS = 3650


class Command(BaseCommand):
    help = "Create an API token for a staff user and print it. Pass it to the trainer as TEACHER_TOKEN."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="username of the staff user whose account the trainer uses")
        parser.add_argument(
            "--name", default="trainer", help="description of the token's use, shown in the admin"
        )
        parser.add_argument(
            "--experiment", default="", help="limit the token to the experiment with this name (default: any)"
        )
        parser.add_argument(
            "--days",
            type=int,
            default=TOKEN_DAYS,
            help=f"days until the token expires; 0 means never (default: {TOKEN_DAYS})",
        )

    def handle(self, *args: Any, user: str, name: str, experiment: str, days: int, **options: Any) -> str:
        owner = User.objects.filter(username=User.normalize_username(user)).first()
        if owner is None:
            raise CommandError(f"There is no user {user!r}; create one with: teach site createsuperuser")
        if not owner.is_staff or not owner.is_active:
            raise CommandError(
                f"The user {user!r} must be an active staff user to use the API; change this in the admin."
            )
        if not 0 <= days <= MOST_DAYS:
            raise CommandError(f"--days must be from 0 to {MOST_DAYS}, not {days}.")
        try:
            if experiment:
                validate_name(experiment)
        except ValidationError as error:
            raise CommandError(f"--experiment: {error.message}") from None
        expires_at = timezone.now() + timedelta(days=days) if days else None
        return create_token(owner, name, experiment=experiment, expires_at=expires_at)

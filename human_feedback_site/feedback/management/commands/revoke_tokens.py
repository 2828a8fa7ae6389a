"""``manage.py revoke_tokens USER``: takes keys to the API away."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.services.accounts import revoke_tokens


class Command(BaseCommand):
    """Revoke tokens."""

    help = "Revoke all API tokens of a user, or those of one name: trainers that use them are refused now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("user", help="name of the user that the tokens act for")
        parser.add_argument("--name", help="only those of this name")

    def handle(self, *args: Any, user: str, name: str | None, **options: Any) -> str:
        """Return how many were revoked, which Django prints."""
        owner = User.objects.filter(username=user).first()
        if owner is None:
            raise CommandError(f"There is no user {user!r}.")
        tokens = owner.api_tokens.all()
        return f"{revoke_tokens(tokens if name is None else tokens.filter(name=name))} revoked"

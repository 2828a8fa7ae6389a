"""``manage.py revoke_tokens USER``: revoke a user's API tokens."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.services.accounts import revoke_tokens


class Command(BaseCommand):
    help = (
        "Revoke a user's API tokens: all, or those with one name. Trainers that use them lose access at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="username of the user whose tokens to revoke")
        parser.add_argument("--name", help="revoke only tokens with this name (default: all)")

    def handle(self, *args: Any, user: str, name: str | None, **options: Any) -> str:
        owner = User.objects.filter(username=User.normalize_username(user)).first()
        if owner is None:
            raise CommandError(f"There is no user {user!r}.")
        tokens = owner.api_tokens.all()
        return f"{revoke_tokens(tokens if name is None else tokens.filter(name=name))} revoked"

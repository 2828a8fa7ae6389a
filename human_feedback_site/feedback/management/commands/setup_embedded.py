"""``manage.py setup_embedded``: prepare the database, admin and token of an embedded site."""

import secrets
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.utils import timezone

from human_feedback_site.feedback.management.commands.migrate import setting_up
from human_feedback_site.feedback.models import ApiToken
from human_feedback_site.feedback.services.accounts import TOKEN_DAYS, create_token, token_of
from human_feedback_site.private import write_private

ADMIN = "admin"


class Command(BaseCommand):
    help = (
        "Create or migrate the database. If they don't exist yet, create the first admin and an API token, "
        "and store them in the state folder, in the files admin_password and token."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--show", action="store_true", help="print the admin's password and the token")

    def handle(self, *args: Any, show: bool, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        password_file, token_file = settings.STATE_DIR / "admin_password", settings.STATE_DIR / "token"
        with setting_up():
            admin = User.objects.filter(username=ADMIN).first() or _make_admin(password_file)
            if not _is_good(token_of(_read(token_file)), admin):
                write_private(token_file, create_token(admin, "embedded site") + "\n")
        if show:
            self.stdout.write(
                f"admin password: {_read(password_file) or 'not stored here'}\ntoken: {_read(token_file)}"
            )


def _is_good(token: ApiToken | None, admin: User) -> bool:
    if token is None or token.user != admin:
        return False
    return token.expires_at is None or token.expires_at > timezone.now() + timedelta(days=TOKEN_DAYS / 2)


def _make_admin(password_file: Path) -> User:
    password = secrets.token_urlsafe(15)
    # Write the file first, so that there is never an admin with an unknown password.
    write_private(password_file, password + "\n")
    return User.objects.create_superuser(ADMIN, password=password)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""

"""``manage.py setup_embedded``: all that an embedded site needs before it can serve."""

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

from human_feedback_site.environment import write_private
from human_feedback_site.feedback.models import ApiToken
from human_feedback_site.feedback.services.accounts import TOKEN_DAYS, create_token, token_of
from human_feedback_site.feedback.setup_lock import setting_up

ADMIN = "admin"


class Command(BaseCommand):
    """Bring the database up to date and make, once, the first admin and its token."""

    help = (
        "Create or migrate the database; make the first admin and the researcher's token once, and keep them "
        "in the state folder, in the files admin_password and token."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("--show", action="store_true", help="print the admin's password and the token")

    def handle(self, *args: Any, show: bool, **options: Any) -> None:
        """Do it; doing it again changes nothing."""
        call_command("migrate", interactive=False, verbosity=0)
        password_file, token_file = settings.STATE_DIR / "admin_password", settings.STATE_DIR / "token"
        with setting_up():
            admin = User.objects.filter(username=ADMIN).first() or _make_admin(password_file)
            if not _is_good(token_of(_read(token_file)), admin):
                write_private(token_file, create_token(admin, "embedded site") + "\n")
        if show:
            self.stdout.write(
                f"admin password: {_read(password_file) or 'not kept here'}\ntoken: {_read(token_file)}"
            )


def _is_good(token: ApiToken | None, admin: User) -> bool:
    """Whether a token is the admin's and lasts for as long as a run may take that begins now."""
    if token is None or token.user != admin:
        return False
    return token.expires_at is None or token.expires_at > timezone.now() + timedelta(days=TOKEN_DAYS / 2)


def _make_admin(password_file: Path) -> User:
    password = secrets.token_urlsafe(15)
    write_private(password_file, password + "\n")  # first: an admin whose password nobody knows is of no use
    return User.objects.create_superuser(ADMIN, password=password)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""

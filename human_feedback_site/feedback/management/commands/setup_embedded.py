"""``manage.py setup_embedded``: prepare the database, admin and token of an embedded site."""

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
from human_feedback_site.feedback.services.accounts import SITE_ADMIN, TOKEN_DAYS, create_token, token_of
from human_feedback_site.private import write_private


class Command(BaseCommand):
    help = (
        "Create or migrate the database. If they don't exist yet, create the first admin, who has no "
        "password, and an API token, and store the token in the state folder, in the file token."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--show", action="store_true", help="print the token")

    def handle(self, *args: Any, show: bool, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        token_file = settings.STATE_DIR / "token"
        with setting_up():
            admin = User.objects.filter(username=SITE_ADMIN).first()
            admin = admin or User.objects.create_superuser(SITE_ADMIN, password=None)
            if not _is_good(token_of(_read(token_file)), admin):
                write_private(token_file, create_token(admin, "embedded site") + "\n")
        if show:
            self.stdout.write(f"token: {_read(token_file)}")


def _is_good(token: ApiToken | None, admin: User) -> bool:
    if token is None or token.user != admin:
        return False
    return token.expires_at is None or token.expires_at > timezone.now() + timedelta(days=TOKEN_DAYS / 2)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""

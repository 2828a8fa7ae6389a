"""Commands of ``manage.py``."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, ProgrammingError


class DatabaseCommand(BaseCommand):
    """A command that says in one line what to do where the database is not ready."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; raises ``CommandError``."""
        try:
            return super().execute(*args, **options)
        except (OperationalError, ProgrammingError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise CommandError(
                f"The database cannot be used: {reason}. If it is new, run first: manage.py migrate"
            ) from None

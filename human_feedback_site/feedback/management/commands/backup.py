"""``manage.py backup FOLDER``: copy the database, clips, runs and secrets into a new folder."""

import os
import sqlite3
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from human_feedback_site.feedback.backup.write import back_up
from human_feedback_site.feedback.errors import BackupError, MediaStoreError


class Command(BaseCommand):
    help = (
        "Copy the database, clips, run directories and secrets into a new folder while everything keeps "
        "running. The copies are verified. If the backup fails or is interrupted, the folder isn't created."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="folder to create for the backup; must not exist")
        parser.add_argument(
            "--runs",
            type=Path,
            default=Path("runs"),
            help="folder that contains the run directories (default: runs)",
        )

        parser.add_argument(
            "--without-lost-clips",
            action="store_true",
            help="make the backup even if clips that the site shows are missing",
        )

    def handle(
        self, *args: Any, folder: Path, runs: Path, without_lost_clips: bool = False, **options: Any
    ) -> None:
        os.umask(0o077)  # the backup contains secrets
        with one_line_errors("No backup was made"):
            for line in back_up(folder, runs, without_lost_clips=without_lost_clips):
                self.stdout.write(line)


@contextmanager
def one_line_errors(outcome: str) -> Iterator[None]:
    """Convert errors in the ``with`` block to a one-line ``CommandError`` that starts with ``outcome``."""
    try:
        yield
    except (BackupError, MediaStoreError) as error:
        raise CommandError(f"{outcome}. {error}") from None
    except OSError as error:
        reason = str(error.strerror or error)
        where = f". {error.filename}" if error.filename else ""
        raise CommandError(f"{outcome}{where}: {reason}") from None
    except (DatabaseError, sqlite3.Error) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CommandError(f"{outcome}. The database cannot be read or written: {reason}") from None
    except KeyboardInterrupt:
        raise CommandError(f"{outcome}: interrupted", returncode=130) from None

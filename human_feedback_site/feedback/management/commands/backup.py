"""``manage.py backup FOLDER``: all that would be missed, in a new folder."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from human_feedback_site.feedback.backup.commands import one_line_errors
from human_feedback_site.feedback.backup.write import back_up


class Command(BaseCommand):
    """Back up database, clips, run directories and secrets."""

    help = (
        "Copy the database, the clips, the run directories and the secrets into a new folder, while "
        "everything runs. The copies are checked; a backup that fails or is cut off leaves no folder of "
        "that name."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("folder", type=Path, help="what the backup is to be; must not exist")
        parser.add_argument(
            "--runs", type=Path, default=Path("runs"), help="folder of the run directories (default: runs)"
        )

    def handle(self, *args: Any, folder: Path, runs: Path, **options: Any) -> None:
        """Print a line for each part; raises ``CommandError`` where the backup is not made."""
        os.umask(0o077)  # it holds secrets
        with one_line_errors("No backup was made"):
            for line in back_up(folder, runs):
                self.stdout.write(line)

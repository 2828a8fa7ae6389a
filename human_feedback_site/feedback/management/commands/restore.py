"""``manage.py restore FOLDER``: bring a backup back, into an empty system."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from human_feedback_site.feedback.backup.commands import one_line_errors
from human_feedback_site.feedback.backup.read import restore


class Command(BaseCommand):
    """Restore what ``manage.py backup`` made."""

    help = (
        "Check a backup by its manifest, then bring it back where there is no database, no clip and no run "
        "yet, and bring the tables up to date. What was cut off can be repeated."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("folder", type=Path, help="the backup")
        parser.add_argument(
            "--runs", type=Path, default=Path("runs"), help="folder for the run directories (default: runs)"
        )

    def handle(self, *args: Any, folder: Path, runs: Path, **options: Any) -> None:
        """Print a line for each part; raises ``CommandError`` where it cannot be restored."""
        os.umask(0o077)
        with one_line_errors("Not restored"):
            for line in restore(folder, runs):
                self.stdout.write(line)

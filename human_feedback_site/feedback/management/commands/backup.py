"""``manage.py backup FOLDER``: copy the database, clips, runs and secrets into a new folder."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from human_feedback_site.feedback.backup.commands import one_line_errors
from human_feedback_site.feedback.backup.write import back_up


class Command(BaseCommand):
    """Command that backs up the database, clips, run directories and secrets."""

    help = (
        "Copy the database, clips, run directories and secrets into a new folder while everything keeps "
        "running. The copies are verified. If the backup fails or is interrupted, the folder isn't created."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command-line arguments."""
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
        """Make the backup and print a line for each step; raise ``CommandError`` if it fails."""
        os.umask(0o077)  # the backup contains secrets
        with one_line_errors("No backup was made"):
            for line in back_up(folder, runs, without_lost_clips=without_lost_clips):
                self.stdout.write(line)

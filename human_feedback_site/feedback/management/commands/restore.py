"""``manage.py restore FOLDER``: restore a backup into a new, empty site."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from human_feedback_site.feedback.backup.manifest import read_manifest
from human_feedback_site.feedback.backup.read import restore
from human_feedback_site.feedback.management.commands.backup import one_line_errors


class Command(BaseCommand):
    help = (
        "Check a backup against its manifest, restore it into a system that has no database, clips or runs "
        "yet, and migrate the database. If the restore is interrupted, run it again."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="backup folder to restore")
        parser.add_argument(
            "--runs",
            type=Path,
            default=Path("runs"),
            help="folder to restore the run directories to (default: runs)",
        )
        parser.add_argument("--check", action="store_true", help="only check the backup; restore nothing")

    def handle(self, *args: Any, folder: Path, runs: Path, check: bool = False, **options: Any) -> None:
        os.umask(0o077)
        if check:
            with one_line_errors("Not a good backup"):
                self.stdout.write(f"checked: {folder}, made at {read_manifest(folder).made_at}")
            return
        with one_line_errors("Not restored"):
            for line in restore(folder, runs):
                self.stdout.write(line)

"""``manage.py delete_experiment NAME``: delete an experiment with its labels, clips and invitations."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from human_feedback_site.feedback.errors import MediaStoreError, TrainerAtWorkError
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.services import deletion


def _where() -> str:
    """Return text for an error message that names the SQLite database that was searched.

    The text also says how to search another database, in case the run used a different state folder. For
    PostgreSQL, the text is empty.
    """
    if connection.vendor != "sqlite":
        return ""
    path = connection.settings_dict["NAME"]
    return f" in {path}; if its run used a different --state_dir, set TEACHER_STATE_DIR to that folder"


class Command(BaseCommand):
    help = (
        "Delete an experiment with its labels, comparisons, stored clips and invitations, after showing how "
        "many there are and asking for confirmation. Labeler accounts and the run's own folder are kept. The "
        "command refuses while a trainer is running. If it is interrupted, run it again to continue."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the experiment")
        parser.add_argument(
            "--no-input",
            "--noinput",
            action="store_false",
            dest="ask",
            help="do not ask for confirmation",
        )
        parser.add_argument(
            "--without-clips",
            action="store_true",
            help="do not delete clips from storage, for example because the storage no longer exists",
        )

    def handle(self, *args: Any, name: str, ask: bool, without_clips: bool = False, **options: Any) -> str:
        experiment = Experiment.everything.filter(name=name).first()
        if experiment is None:
            raise CommandError(f"There is no experiment {name!r}{_where()}.")
        try:
            deletion.refuse_while_training(experiment)
            found = deletion.contents_of(experiment, without_clips=without_clips)
            contents = ", ".join(found) or "no data"
            kept = " Stored clips are kept." if without_clips else ""
            self.stdout.write(
                f"The experiment {name} will be permanently deleted, along with: {contents}.{kept}"
            )
            if ask:
                self._ask(name)
            deletion.ask_for_deletion(experiment, without_clips=without_clips)
            deletion.go_on(experiment)
        except (MediaStoreError, TrainerAtWorkError) as error:
            raise CommandError(f"{error} {deletion.state_of(experiment)}") from None
        return f"{name} was deleted."

    def _ask(self, name: str) -> None:
        if not sys.stdin.isatty():
            raise CommandError(
                "Can't ask for confirmation without a terminal; pass --no-input to delete anyway."
            )
        try:
            typed = input(f"Type {name} to delete it: ").strip()
        except (EOFError, KeyboardInterrupt):
            typed = ""
        if typed != name:
            raise CommandError(f"Nothing was deleted: you typed {typed!r} instead of {name}.")

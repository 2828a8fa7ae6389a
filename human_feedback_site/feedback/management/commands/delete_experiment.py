"""``manage.py delete_experiment NAME``: deletes an experiment with its labels, clips and invitations."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from human_feedback_site.feedback.errors import MediaStoreError, TrainerAtWorkError
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.services import deletion


def _where() -> str:
    """Say where an experiment was looked for: the settings may name another site than the one that has it."""
    if connection.vendor != "sqlite":
        return ""
    path = connection.settings_dict["NAME"]
    return f" in {path}; if its run had another --state_dir, name that in TEACHER_STATE_DIR"


class Command(BaseCommand):
    """Delete an experiment."""

    help = (
        "Delete an experiment with its labels, comparisons, clips in storage and invitations, after it was "
        "said how many these are. The accounts of labelers stay, and so does the run's own folder. It is "
        "refused while a trainer is at work. Where it was interrupted, it goes on when it is run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("name", metavar="NAME", help="of the experiment")
        parser.add_argument(
            "--no-input",
            "--noinput",
            action="store_false",
            dest="ask",
            help="do not ask for the name again",
        )
        parser.add_argument(
            "--without-clips",
            action="store_true",
            help="leave clips where they are, as where they or their storage are gone already",
        )

    def handle(self, *args: Any, name: str, ask: bool, without_clips: bool = False, **options: Any) -> str:
        """Say what goes, ask, and delete it."""
        experiment = Experiment.everything.filter(name=name).first()
        if experiment is None:
            raise CommandError(f"There is no experiment {name!r}{_where()}.")
        try:
            deletion.refuse_while_training(experiment)
            contents = deletion.contents_of(experiment, without_clips=without_clips)
            stays = " Clips that are in storage stay there." if without_clips else ""
            self.stdout.write(f"The experiment {name} goes for good, with: {contents}.{stays}")
            if ask:
                self._ask(name)
            deletion.ask_for_deletion(experiment, without_clips=without_clips)
            deletion.go_on(experiment)
        except (MediaStoreError, TrainerAtWorkError) as error:
            raise CommandError(f"{error} {deletion.state_of(experiment)}") from None
        return f"{name} is deleted."

    def _ask(self, name: str) -> None:
        if not sys.stdin.isatty():
            raise CommandError("Nobody is there to confirm it: say --no-input to delete without being asked.")
        try:
            typed = input(f"Type {name} to delete it: ").strip()
        except (EOFError, KeyboardInterrupt):
            typed = ""
        if typed != name:
            raise CommandError(f"Nothing was deleted: expected {name}, found {typed!r}.")

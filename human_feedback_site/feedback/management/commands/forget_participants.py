"""``manage.py forget_participants``: deletes the numbers under which a platform sent people."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.models import Arrival, Experiment
from human_feedback_site.feedback.services.invites import forget_participants


class Command(BaseCommand):
    """Forget participants."""

    help = (
        "Delete the numbers under which a platform sent people. Their labels stay, under the pseudonym; who "
        "comes again afterwards is somebody new."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument(
            "participants", nargs="*", metavar="PARTICIPANT", help="who asked to be forgotten"
        )
        parser.add_argument("--experiment", help="only those of this experiment; alone: all of them")

    def handle(self, *args: Any, participants: list[str], experiment: str | None, **options: Any) -> str:
        """Return how many were forgotten, which Django prints."""
        if not participants and experiment is None:
            raise CommandError(
                "Say whom to forget: participants' numbers, or --experiment NAME for all of it."
            )
        found = Arrival.objects.all()
        if experiment is not None:
            if not Experiment.objects.filter(name=experiment).exists():
                raise CommandError(f"There is no experiment {experiment!r}.")
            found = found.filter(experiment__name=experiment)
        if participants:
            found = found.filter(participant__in=participants)
        return f"{forget_participants(found)} forgotten"

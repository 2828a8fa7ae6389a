"""``manage.py forget_participants``: delete the platform IDs of participants."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.models import Arrival, Experiment
from human_feedback_site.feedback.services.invites import forget_participants


class Command(BaseCommand):
    help = (
        "Delete the IDs under which a recruitment platform sent participants. Their labels are kept under "
        "the pseudonyms. A participant who returns afterwards counts as a new one."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "participants",
            nargs="*",
            metavar="PARTICIPANT",
            help="platform IDs of the participants to forget",
        )
        parser.add_argument(
            "--experiment",
            help="forget only participants of this experiment; without PARTICIPANT, forget all of them",
        )

    def handle(self, *args: Any, participants: list[str], experiment: str | None, **options: Any) -> str:
        if not participants and experiment is None:
            raise CommandError(
                "Pass the platform IDs of the participants to forget, or --experiment NAME to forget all of "
                "an experiment's participants."
            )
        found = Arrival.objects.all()
        if experiment is not None:
            if not Experiment.objects.filter(name=experiment).exists():
                raise CommandError(f"There is no experiment {experiment!r}.")
            found = found.filter(experiment__name=experiment)
        if participants:
            found = found.filter(participant__in=participants)
        return f"{forget_participants(found)} forgotten"

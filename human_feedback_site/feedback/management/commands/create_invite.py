"""``manage.py create_invite EXPERIMENT LABELER``: a link that signs a labeler in."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.feedback.models import Experiment, validate_labeler_name
from human_feedback_site.feedback.services.invites import invite_by_name, link_of


class Command(BaseCommand):
    """Print an invitation."""

    help = "Print a link that signs a labeler in and leads to the labeling page of an experiment."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("experiment")
        parser.add_argument("labeler", help="name of the labeler, made where there is none")
        parser.add_argument(
            "--site-url",
            default=settings.PUBLIC_URL,
            help="address of the site (default: TEACHER_PUBLIC_URL)",
        )

    def handle(self, *args: Any, experiment: str, labeler: str, site_url: str | None, **options: Any) -> str:
        """Return the link, which Django prints."""
        if site_url is None:
            raise CommandError(
                "Say where the site is: --site-url http://127.0.0.1:8000, or TEACHER_PUBLIC_URL."
            )
        found = Experiment.objects.filter(name=experiment).first()
        if found is None:
            raise CommandError(f"There is no experiment {experiment!r}.")
        try:
            validate_labeler_name(labeler)
        except ValidationError as error:
            raise CommandError(f"{labeler!r} cannot be the name of a labeler. {error.message}") from None
        origin = site_url.rstrip("/").removesuffix(settings.FORCE_SCRIPT_NAME or "")  # links have the path
        return link_of(invite_by_name(found, labeler), origin)

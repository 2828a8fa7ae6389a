"""``manage.py create_invite EXPERIMENT LABELER``: print a labeler's invitation link."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from human_feedback_site.environment import announced_url
from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import Experiment, Labeler, validate_labeler_name
from human_feedback_site.feedback.services.invites import invite_by_name, link_of


class Command(BaseCommand):
    help = "Print a link that signs in a labeler and opens an experiment's labeling page."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("experiment", help="name of the experiment")
        parser.add_argument("labeler", help="name of the labeler; created if it doesn't exist")
        parser.add_argument("--model", action="store_true", help="the labeler is a model, see teach label")
        parser.add_argument(
            "--share", type=float, help="share of the questions that a model may decide without people"
        )
        parser.add_argument(
            "--site-url",
            default=settings.PUBLIC_URL or announced_url(settings.STATE_DIR),
            help="URL of the site (default: TEACHER_PUBLIC_URL, or that of a running embedded site)",
        )

    def handle(self, *args: Any, experiment: str, labeler: str, site_url: str | None, **options: Any) -> str:
        if site_url is None:
            raise CommandError(
                "The site's URL is unknown. Open the site with teach site, or pass --site-url, for example "
                "http://127.0.0.1:8000."
            )
        found = Experiment.objects.filter(name=experiment).first()
        if found is None:
            raise CommandError(f"There is no experiment {experiment!r}.")
        share = options["share"]
        if share is not None and not (options["model"] and 0 <= share <= 1):
            raise CommandError(f"--share is for --model, and from 0 to 1, not {share:g}.")
        try:
            validate_labeler_name(labeler)
        except ValidationError as error:
            raise CommandError(f"{labeler!r} is not a valid labeler name. {error.message}") from None
        # Remove the path prefix, which link_of adds again.
        origin = site_url.rstrip("/").removesuffix(settings.FORCE_SCRIPT_NAME or "")
        try:
            invite = invite_by_name(found, labeler, Labeler.Kind.MODEL if options["model"] else None, share)
        except ConflictError as error:
            raise CommandError(str(error)) from None
        return link_of(invite, origin)

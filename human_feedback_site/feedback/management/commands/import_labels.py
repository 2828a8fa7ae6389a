"""``manage.py import_labels EXPERIMENT COMPARISONS LABELS``: bring a previous export back."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.template.defaultfilters import pluralize

from human_feedback_site.feedback.errors import (
    BadFileError,
    ConflictError,
    MediaStoreError,
    NotInstalledError,
)
from human_feedback_site.feedback.models import Experiment, validate_name
from human_feedback_site.feedback.services.experiments import put_experiment
from human_feedback_site.feedback.services.imports import import_tables


class Command(BaseCommand):
    """Import what was exported."""

    help = (
        "Add the comparisons and labels of a previous export (CSV or Parquet) that an experiment does not "
        "have yet. All or nothing; what is there stays as it is, so importing twice changes nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command line."""
        parser.add_argument("experiment")
        parser.add_argument("comparisons", type=Path, help="the file of the comparisons")
        parser.add_argument("labels", type=Path, help="the file of the labels")
        parser.add_argument(
            "--owner", help="make the experiment where there is none, paused, for this researcher"
        )
        parser.add_argument("--prompt", default="", help="of a new experiment: the sentence labelers see")
        parser.add_argument("--env_id", default="unknown", help="of a new experiment")
        parser.add_argument("--fps", type=int, default=30, help="of a new experiment's clips")

    def handle(self, *args: Any, **options: Any) -> str:
        """Return what was imported, which Django prints."""
        try:
            with transaction.atomic():  # a new experiment stays only with what it was made for
                found = Experiment.objects.filter(name=options["experiment"]).first()
                experiment = found or _new_experiment(options)
                done = import_tables(experiment, options["comparisons"], options["labels"])
        except (BadFileError, MediaStoreError, NotInstalledError) as error:
            raise CommandError(f"Nothing was imported.\n{error}") from None
        rounded = (
            f"\nNOTICE: no number in {options['comparisons'].name} has more than 11 digits: a spreadsheet "
            "may have rounded them, and so they are kept. Files as they were exported keep all digits."
        )
        cancelled = f", {done.cancelled} of them cancelled: their clips are not in the store"
        return (
            f"{done.comparisons} comparison{pluralize(done.comparisons)}"
            f"{cancelled if done.cancelled else ''}; "
            f"{done.labels} label{pluralize(done.labels)}; {done.undone} taken back."
            f"{rounded if done.rounded else ''}"
        )


def _new_experiment(options: dict[str, Any]) -> Experiment:
    name, owner = options["experiment"], User.objects.filter(username=options["owner"], is_staff=True).first()
    if options["owner"] is None:
        raise CommandError(f"There is no experiment {name!r}; --owner USER makes one.")
    if owner is None:
        raise CommandError(f"There is no researcher {options['owner']!r}.")
    try:
        validate_name(name)
    except ValidationError as error:
        raise CommandError(f"{name!r} cannot be the name of an experiment. {error.message}") from None
    values = {
        **{key: options[key] for key in ("prompt", "env_id", "fps")},
        "has_true_reward": False,
        "state": Experiment.State.PAUSED,
    }
    try:
        experiment, _ = put_experiment(owner, name, uuid4(), values)
    except ConflictError as error:
        found = Experiment.objects.filter(name=name).first()  # another import has made it in this moment
        if found is None:  # one of that name is being deleted
            raise CommandError(f"Nothing was imported. {error}") from None
        return found
    return experiment

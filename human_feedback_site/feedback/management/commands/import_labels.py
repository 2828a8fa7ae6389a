"""``manage.py import_labels EXPERIMENT COMPARISONS LABELS``: import exported comparisons and labels."""

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
    help = (
        "Add comparisons and labels from an earlier export (CSV or Parquet) to an experiment. Existing rows "
        "are left unchanged, so importing twice is harmless. On any error, nothing is imported."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("experiment", help="name of the experiment")
        parser.add_argument("comparisons", type=Path, help="file of exported comparisons (CSV or Parquet)")
        parser.add_argument("labels", type=Path, help="file of exported labels (CSV or Parquet)")
        parser.add_argument(
            "--owner",
            help="if the experiment doesn't exist, create it, paused, with this user as its owner",
        )
        parser.add_argument("--prompt", default="", help="prompt (used only if the experiment is created)")
        parser.add_argument(
            "--env_id", default="unknown", help="environment ID (used only if the experiment is created)"
        )
        parser.add_argument(
            "--fps",
            type=int,
            default=30,
            help="frame rate of the clips (used only if the experiment is created)",
        )

    def handle(self, *args: Any, **options: Any) -> str:
        try:
            with transaction.atomic():  # a failed import must not leave a new, empty experiment
                found = Experiment.objects.filter(name=options["experiment"]).first()
                experiment = found or _new_experiment(options)
                done = import_tables(experiment, options["comparisons"], options["labels"])
        except (BadFileError, MediaStoreError, NotInstalledError) as error:
            raise CommandError(f"Nothing was imported.\n{error}") from None
        rounded = (
            f"\nNOTICE: no number in {options['comparisons'].name} has more than 11 digits, so a spreadsheet "
            "may have rounded them. They were imported unchanged; the originally exported files have all "
            "digits."
        )
        cancelled = f", {done.cancelled} of them cancelled because their clips are not in the media store"
        return (
            f"{done.comparisons} comparison{pluralize(done.comparisons)}"
            f"{cancelled if done.cancelled else ''}; "
            f"{done.labels} label{pluralize(done.labels)}; {done.undone} undone."
            f"{rounded if done.rounded else ''}"
        )


def _new_experiment(options: dict[str, Any]) -> Experiment:
    name, username = options["experiment"], User.normalize_username(options["owner"] or "")
    owner = User.objects.filter(username=username, is_staff=True).first()
    if options["owner"] is None:
        raise CommandError(f"There is no experiment {name!r}; pass --owner USER to create it.")
    if owner is None:
        raise CommandError(f"--owner must be an existing staff user, not {options['owner']!r}.")
    try:
        validate_name(name)
    except ValidationError as error:
        raise CommandError(f"{name!r} is not a valid experiment name. {error.message}") from None
    values = {
        **{key: options[key] for key in ("prompt", "env_id", "fps")},
        "has_true_reward": False,
        "state": Experiment.State.PAUSED,
    }
    try:
        experiment, _ = put_experiment(owner, name, uuid4(), values)
    except ConflictError as error:
        found = Experiment.objects.filter(name=name).first()  # another import may just have created it
        if found is None:  # an experiment of that name is being deleted
            raise CommandError(f"Nothing was imported. {error}") from None
        return found
    return experiment

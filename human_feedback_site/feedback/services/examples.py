"""Pairs that explain the prompt, taken from an experiment's own comparisons."""

from dataclasses import asdict, dataclass
from uuid import UUID

from django.db import transaction

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import Comparison, Example, Experiment
from human_feedback_site.feedback.services.experiments import cancel_comparisons


@dataclass(frozen=True)
class NewExample:
    """What a pair teaches: its answer, why, and whether it is asked for practice or shown with its answer."""

    better: str
    explanation: str
    practice: bool


@transaction.atomic
def use_as_example(experiment: Experiment, comparison: UUID, example: NewExample) -> None:
    """Show labelers a comparison as an example; one that nobody answered is not asked any more.

    Raises :class:`NotFoundError` where there is no such comparison in the experiment, :class:`ConflictError`
    where its clips are gone, or where it finds out who does not look, which works as long as nobody is told.
    """
    found = experiment.comparisons.select_related("experiment").filter(uuid=comparison).first()
    if found is None:
        raise NotFoundError(f"There is no comparison {comparison} in this experiment.")
    if found.clips_gone or found.status == Comparison.Status.GOLD:
        raise ConflictError(f"The comparison {comparison} is gold, or its clips are gone.")
    Example.objects.update_or_create(experiment=experiment, comparison=found, defaults=asdict(example))
    cancel_comparisons(experiment, [comparison])


def remove_example(experiment: Experiment, comparison: UUID) -> None:
    """Show labelers a comparison as an example no longer; whether it is asked stays as it is."""
    experiment.examples.filter(comparison__uuid=comparison).delete()

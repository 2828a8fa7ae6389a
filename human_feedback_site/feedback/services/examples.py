"""Example pairs that explain the prompt, chosen from an experiment's own comparisons."""

from dataclasses import asdict, dataclass
from uuid import UUID

from django.db import transaction

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import Comparison, Example, Experiment
from human_feedback_site.feedback.services.experiments import cancel_comparisons


@dataclass(frozen=True)
class NewExample:
    """A new example: its correct answer, its explanation, and whether it is a practice question.

    If ``practice`` is True, labelers must answer it before their first pair; otherwise it is shown with its
    answer.
    """

    better: str
    explanation: str
    practice: bool


@transaction.atomic
def use_as_example(experiment: Experiment, comparison: UUID, example: NewExample) -> None:
    """Show a comparison to labelers as an example, and cancel it if it has no label yet.

    Raises :class:`NotFoundError` if the experiment has no such comparison. Raises :class:`ConflictError` if
    its clips are gone or if it is an attention check, whose answer labelers must not learn.
    """
    found = experiment.comparisons.select_related("experiment").filter(uuid=comparison).first()
    if found is None:
        raise NotFoundError(f"There is no comparison {comparison} in this experiment.")
    if found.clips_gone or found.status == Comparison.Status.GOLD:
        raise ConflictError(
            f"Comparison {comparison} can't be an example: it is an attention check, or its clips are gone."
        )
    Example.objects.update_or_create(experiment=experiment, comparison=found, defaults=asdict(example))
    cancel_comparisons(experiment, [comparison])


def remove_example(experiment: Experiment, comparison: UUID) -> None:
    """Stop showing a comparison as an example; its labeling status stays the same."""
    experiment.examples.filter(comparison__uuid=comparison).delete()

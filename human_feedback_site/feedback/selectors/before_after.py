"""Query for the videos that show labelers how the agent has changed since training began."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db.models import Count, F, Max, Min, OuterRef, Subquery, Window
from django.db.models.functions import Coalesce

from human_feedback_site.feedback.models import Episode, Experiment, Label
from human_feedback_site.feedback.models.querysets import not_undone, since_deletion


@dataclass(frozen=True)
class BeforeAfter:
    """First and newest episode video of an experiment, each identified by its environment step.

    Attributes:
        answered: number of comparisons that had an answer when the newest video was registered; None if
            unknown.
        own: number of these comparisons that have a counted answer by the labeler.
    """

    first: int
    newest: int
    answered: int | None
    own: int


def before_after(user: User, experiments: Collection[Experiment]) -> Mapping[int, BeforeAfter]:
    """Return the first and the newest video of each experiment that has both, by the experiment's ID.

    Experiments that hide videos from labelers are left out, and so are those whose newest video is older
    than the first answer. The number of database queries does not depend on the number of experiments.

    Args:
        user: account of the labeler whose answers are counted as ``own``.
        experiments: experiments that the user may label.
    """
    own = Label.objects.filter(
        not_undone(),
        labeler__user=user,
        status=Label.Status.COUNTED,
        comparison__experiment=OuterRef("experiment"),
        created_at__lte=OuterRef("created_at"),
    )
    counted = own.order_by().values("comparison__experiment").annotate(count=Count("pk")).values("count")
    found = (
        Episode.objects.filter(since_deletion(), experiment__in=experiments, experiment__show_episodes=True)
        .annotate(
            first=Window(Min("step"), partition_by="experiment"),
            newest=Window(Max("step"), partition_by="experiment"),
            own=Coalesce(Subquery(counted), 0),
        )
        .filter(step=F("newest"), first__lt=F("newest"))
    )
    return {
        experiment: BeforeAfter(first, newest, answered, own)
        for experiment, first, newest, answered, own in found.values_list(
            "experiment", "first", "newest", "answered", "own"
        )
        if answered != 0
    }

"""Conditions and annotations that services, selectors and the queue share."""

from typing import TypeVar

from django.db.models import Case, CharField, Exists, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Now

from human_feedback_site.feedback.models.comparisons import Comparison, Outcome
from human_feedback_site.feedback.models.experiments import Episode, Experiment
from human_feedback_site.feedback.models.labels import Decision, Label
from human_feedback_site.feedback.models.people import Participation

_WithClips = TypeVar("_WithClips", Comparison, Episode)


def live_leases() -> Q:
    """Select leases that are neither answered nor expired; only a lease to judge takes a place."""
    return unanswered_leases() & Q(expires_at__gt=Now())


def unanswered_leases() -> Q:
    """Select leases without an answer.

    An answer under an older lease of the same pair ends the newer lease too, unless the answer is void.
    """
    answers = Label.objects.filter(
        Q(lease=OuterRef("pk")) | Q(created_at__gte=OuterRef("created_at")) & ~Q(status=Label.Status.VOID),
        comparison=OuterRef("comparison"),
        labeler=OuterRef("labeler"),
    )
    return ~Q(Exists(answers))


def not_undone() -> Q:
    """Select labels that were not withdrawn."""
    return Q(undo=None)


def judgments() -> QuerySet[Label]:
    """Return labels that judge a comparison and were not withdrawn, whether they count or wait."""
    return Label.objects.filter(not_undone(), status__in=(Label.Status.COUNTED, Label.Status.SURPLUS))


def waiting_labels() -> QuerySet[Label]:
    """Return labels that may take the next free place of their comparison: the first waiting of each labeler.

    Labels of a labeler who was stopped, or who has a label there that counts, do not wait.
    """
    same = judgments().filter(comparison=OuterRef("comparison"), labeler=OuterRef("labeler"))
    ahead = same.filter(Q(status=Label.Status.COUNTED) | Q(pk__lt=OuterRef("pk")))
    stopped = Participation.objects.filter(
        labeler=OuterRef("labeler"), experiment=OuterRef("comparison__experiment"), stopped_at__isnull=False
    )
    waiting = Label.objects.filter(not_undone(), status=Label.Status.SURPLUS)
    return waiting.filter(~Exists(ahead), ~Exists(stopped))


def lock_comparisons(comparisons: QuerySet[Comparison]) -> list[Comparison]:
    """Lock rows in the order of their ids, as everybody does who waits for locks, and return them."""
    return list(comparisons.select_for_update(no_key=True).order_by("id"))


def newest_decision(field: str) -> Subquery:
    """Return a field of a comparison's current decision, for annotating comparisons."""
    decisions = Decision.objects.filter(comparison=OuterRef("pk")).order_by("-seq")
    return Subquery(decisions.values(field)[:1])


def with_decisions(comparisons: QuerySet[Comparison]) -> QuerySet[Comparison]:
    """Annotate comparisons with their current ``decision`` and ``probability``."""
    return comparisons.annotate(
        decision=newest_decision("decision"), probability=newest_decision("probability")
    )


def label_outcome() -> Case:
    """Return the outcome that a label names, in SQL what :func:`verdict_of` returns for one label."""
    first = Q(choice=Label.Choice.LEFT, swapped=False) | Q(choice=Label.Choice.RIGHT, swapped=True)
    same_on_both_sides = (Label.Choice.EQUAL, Label.Choice.CANT_TELL)
    return Case(
        When(first, then=Value(Outcome.FIRST)),
        When(choice__in=same_on_both_sides, then="choice"),
        default=Value(Outcome.SECOND),
        output_field=CharField(),
    )


def comparisons_with_clips(experiment: Experiment) -> QuerySet[Comparison]:
    """Return the comparisons whose clips the store should hold; see :attr:`.Comparison.clips_gone`."""
    return _since_deletion(experiment, experiment.comparisons.filter(clips_missing=False))


def watchable_episodes(experiment: Experiment) -> QuerySet[Episode]:
    """Return whole episodes whose videos were not deleted with the clips."""
    return _since_deletion(experiment, experiment.episodes.all())


def _since_deletion(experiment: Experiment, rows: QuerySet[_WithClips]) -> QuerySet[_WithClips]:
    """Return what was registered after the clips were deleted the last time."""
    deleted_at = experiment.media_deleted_at
    return rows if deleted_at is None else rows.filter(created_at__gt=deleted_at)

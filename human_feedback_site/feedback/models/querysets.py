"""Query filters and annotations shared by services, selectors and the queue."""

from collections.abc import Sequence
from typing import TypeVar

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now

from human_feedback_site.feedback.kinds import KINDS, PAIR, Kind
from human_feedback_site.feedback.models.comparisons import Comparison
from human_feedback_site.feedback.models.experiments import Episode, Experiment
from human_feedback_site.feedback.models.labels import Decision, Label
from human_feedback_site.feedback.models.people import Labeler, Participation

_WithClips = TypeVar("_WithClips", Comparison, Episode)


def live_leases() -> Q:
    """Return a ``Q`` filter that matches leases that have not ended; an answer ends its lease.

    It also matches leases for attention checks and repeats, which take no label slot.
    """
    return Q(expires_at__gt=Now())


def unanswered_leases() -> Q:
    """Return a ``Q`` filter that matches leases without an answer.

    A lease also counts as answered if, after it was granted, the labeler answered the same question under a
    different lease, unless that answer is void.
    """
    answers = Label.objects.filter(
        Q(lease=OuterRef("pk")) | Q(created_at__gte=OuterRef("created_at")) & ~Q(status=Label.Status.VOID),
        comparison=OuterRef("comparison"),
        labeler=OuterRef("labeler"),
    )
    return ~Q(Exists(answers))


def not_undone() -> Q:
    """Return a ``Q`` filter that matches labels that were not withdrawn."""
    return Q(undo=None)


def judgments() -> QuerySet[Label]:
    """Return counted and surplus labels that were not withdrawn."""
    return Label.objects.filter(not_undone(), status__in=(Label.Status.COUNTED, Label.Status.SURPLUS))


def eligible_labels() -> QuerySet[Label]:
    """Return the surplus labels that may be promoted, at most one per labeler and comparison.

    If a labeler has several for a comparison, the oldest is returned. Labels by labelers who were stopped, or
    who already have a counted label for the comparison, are excluded, and those by models unless these may
    decide all comparisons.
    """
    same = judgments().filter(comparison=OuterRef("comparison"), labeler=OuterRef("labeler"))
    ahead = same.filter(Q(status=Label.Status.COUNTED) | Q(pk__lt=OuterRef("pk")))
    stopped = Participation.objects.filter(
        Q(stopped_at__isnull=False) | Q(labeler__kind=Labeler.Kind.MODEL, share__lt=1),
        labeler=OuterRef("labeler"),
        experiment=OuterRef("comparison__experiment"),
    )
    waiting = Label.objects.filter(not_undone(), status=Label.Status.SURPLUS)
    return waiting.filter(~Exists(ahead), ~Exists(stopped))


def lock_comparisons(comparisons: QuerySet[Comparison]) -> list[Comparison]:
    """Lock the comparisons' rows in ID order and return the comparisons.

    To avoid deadlocks, all code that waits for locks on several comparisons takes them in this order.
    """
    return list(comparisons.select_for_update(no_key=True).order_by("id"))


def newest_decision(field: str) -> Subquery:
    """Return a subquery for annotating comparisons with the value of ``field`` in their newest decision."""
    decisions = Decision.objects.filter(comparison=OuterRef("pk")).order_by("-seq")
    return Subquery(decisions.values(field)[:1])


def with_decisions(comparisons: QuerySet[Comparison]) -> QuerySet[Comparison]:
    """Annotate comparisons with the ``decision`` and ``probability`` of their newest decision."""
    return comparisons.annotate(
        decision=newest_decision("decision"), probability=newest_decision("probability")
    )


def kinds_in(experiment: Experiment) -> Sequence[Kind]:
    """Return the kinds of the experiment's comparisons, or only pairs if it has none yet."""
    found = set(experiment.comparisons.order_by().values_list("kind", flat=True).distinct())
    return [kind for name, kind in KINDS.items() if name in found] or [PAIR]


def comparisons_with_clips(experiment: Experiment) -> QuerySet[Comparison]:
    """Return the comparisons whose clips should be in the media store."""
    return _since_deletion(experiment, experiment.comparisons.filter(clips_missing=False))


def answered_comparisons(experiment: Experiment) -> QuerySet[Comparison]:
    """Return the comparisons that have a counted label, without attention checks."""
    real = Comparison.objects.filter(experiment=experiment).exclude(status=Comparison.Status.GOLD)
    return real.filter(n_labels__gt=0)


def watchable_episodes(experiment: Experiment) -> QuerySet[Episode]:
    """Return the whole-episode videos that should be in the media store."""
    return _since_deletion(experiment, experiment.episodes.all())


def since_deletion() -> Q:
    """Return a ``Q`` filter for the rows of many experiments created since their clips were last deleted."""
    return Q(experiment__media_deleted_at=None) | Q(created_at__gt=F("experiment__media_deleted_at"))


def _since_deletion(experiment: Experiment, rows: QuerySet[_WithClips]) -> QuerySet[_WithClips]:
    """Return the rows created since the experiment's clips were last deleted."""
    deleted_at = experiment.media_deleted_at
    return rows if deleted_at is None else rows.filter(created_at__gt=deleted_at)

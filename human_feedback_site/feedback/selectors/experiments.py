"""Queries about experiments: access, progress, the feed of decisions, and learning curves."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import (
    Count,
    Exists,
    F,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Window,
)
from django.db.models.functions import Mod, Now, RowNumber

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import (
    ApiToken,
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
    SequenceCounter,
    TrainingPoint,
)
from human_feedback_site.feedback.models.querysets import live_leases, with_decisions


class Point(TypedDict):
    """One point of a learning curve."""

    step: int
    value: float


@dataclass(frozen=True)
class Feed:
    """Decisions after a cursor, up to a limit; ``last_seq`` is the feed's newest sequence number."""

    last_seq: int
    items: Sequence[Decision]


@dataclass(frozen=True)
class Progress:
    """Number of comparisons in each labeling state, excluding gold comparisons."""

    asked: int  # comparisons that were not canceled
    answered: int  # comparisons with at least one counted label
    open: int  # comparisons that still need labels
    waiting: int  # open comparisons without any counted label
    cancelled: int
    # time when the oldest open comparison was registered; None if none is open
    waiting_since: datetime | None


def own_experiment(user: User, name: str) -> Experiment:
    """Return the experiment called ``name`` if ``user`` owns it, else raise :class:`NotFoundError`."""
    experiment = Experiment.objects.filter(owner=user, name=name).first()
    if experiment is None:
        raise NotFoundError(f"You have no experiment named {name!r}.")
    return experiment


def experiments_to_manage(user: User | AnonymousUser) -> QuerySet[Experiment]:
    """Return the experiments that ``user`` may see: all for superusers, their own for other staff."""
    if not user.is_staff:
        return Experiment.objects.none()
    return Experiment.objects.all() if user.is_superuser else Experiment.objects.filter(owner=user)


def experiments_watched(digests: Mapping[str, str]) -> QuerySet[Experiment]:
    """Return the experiments with these IDs that one of the API tokens with these digests may access."""
    tokens = ApiToken.objects.exclude(expires_at__lte=Now()).filter(
        Q(experiment="") | Q(experiment=OuterRef("name")),
        user=OuterRef("owner"),
        user__is_active=True,
        user__is_staff=True,
        digest__in=digests.values(),
    )
    return Experiment.objects.filter(Exists(tokens), pk__in=digests)


def experiments_to_label(user: User) -> QuerySet[Experiment]:
    """Return the experiments that ``user`` owns or was invited to."""
    return Experiment.objects.filter(Q(labelers__user=user) | Q(owner=user)).distinct()


def last_seq(experiment: Experiment) -> int:
    """Return the sequence number of the experiment's newest decision."""
    return SequenceCounter.objects.get(experiment=experiment).last_seq


def decisions_after(experiment: Experiment, after: int, limit: int) -> Feed:
    """Return the decisions after the cursor ``after``, without gaps.

    The counter is read first. All decisions up to the counter's value are already committed, so none of them
    can appear later. Each decision has ``prompt_version``, the newest prompt version among the comparison's
    counted labels, and ``answers``: these labels, if their kind's answers depend on the labeler, else None.
    """
    newest = last_seq(experiment)
    counting = Label.objects.filter(
        comparison=OuterRef("comparison"), status=Label.Status.COUNTED, undo=None
    ).order_by("-prompt_version")
    items = Decision.objects.filter(experiment=experiment, seq__gt=after, seq__lte=newest).annotate(
        prompt_version=Subquery(counting.values("prompt_version")[:1])
    )
    page: list[Any] = list(items.select_related("comparison").order_by("seq")[:limit])
    personal = {item.comparison_id for item in page if item.comparison.question.personal}
    given: dict[int, list[Mapping[str, object]]] = defaultdict(list)
    if personal:
        labels = Label.objects.filter(comparison__in=personal, status=Label.Status.COUNTED, undo=None)
        for comparison, labeler, answer in labels.order_by("pk").values_list(
            "comparison", "labeler", "answer"
        ):
            given[comparison].append({"labeler": labeler, "answer": answer})
    for item in page:
        item.answers = given[item.comparison_id] if item.comparison_id in personal else None
    return Feed(newest, page)


def progress_of(experiment: Experiment) -> Progress:
    """Count the experiment's comparisons by labeling state."""
    is_open = Q(status=Comparison.Status.OPEN)
    counts = experiment.comparisons.exclude(status=Comparison.Status.GOLD).aggregate(
        total=Count("pk"),
        answered=Count("pk", filter=Q(n_labels__gt=0)),
        open=Count("pk", filter=is_open),
        waiting=Count("pk", filter=is_open & Q(n_labels=0)),
        cancelled=Count("pk", filter=Q(status=Comparison.Status.CANCELLED)),
        waiting_since=Min("created_at", filter=is_open),
    )
    return Progress(asked=counts.pop("total") - counts["cancelled"], **counts)


def count_open(experiment: Experiment) -> tuple[int, int]:
    """Count open comparisons, and how many of them were requested during training.

    Trainers call this every few seconds, so it reads only open comparisons; a million others may exist.
    """
    counts = experiment.comparisons.filter(status=Comparison.Status.OPEN).aggregate(
        all=Count("pk"), training=Count("pk", filter=Q(phase=Comparison.Phase.TRAINING))
    )
    return counts["all"], counts["training"]


def active_labelers(experiment: Experiment) -> QuerySet[Participation]:
    """Return the participations of labelers who have a live lease or answered in the last two minutes."""
    since = Now() - timedelta(seconds=settings.ACTIVE_LABELER_SECONDS)
    own = Q(labeler=OuterRef("labeler"), comparison__experiment=experiment)
    holding = Lease.objects.filter(live_leases(), own)
    answering = Label.objects.filter(own, created_at__gt=since)
    return experiment.participations.filter(Exists(holding) | Exists(answering))


def answers_given(labeler: Labeler, experiment: Experiment) -> int:
    """Return the number of the labeler's valid answers under the current invitation."""
    known = Participation.objects.filter(labeler=labeler, experiment=experiment).first()
    return known.part_answered if known else 0


def comparisons_with_decisions(experiment: Experiment) -> QuerySet[Comparison]:
    """Return the experiment's comparisons with their current ``decision`` and ``probability``."""
    return with_decisions(experiment.comparisons.all())


def learning_curves(experiment: Experiment, most: int) -> dict[str, list[Point]]:
    """Return each learning curve's points by tag, downsampled to every n-th point and the last one."""
    points = TrainingPoint.objects.filter(experiment=experiment).annotate(
        place=Window(RowNumber(), partition_by="tag", order_by="step") - 1,
        count=Window(Count("pk"), partition_by="tag"),
    )
    every = (F("count") + (most - 1)) / most
    chosen = points.annotate(remainder=Mod("place", every)).filter(Q(remainder=0) | Q(place=F("count") - 1))
    found = chosen.order_by("tag", "step").values_list("tag", "step", "value")
    curves: dict[str, list[Point]] = {}
    for tag, step, value in found:
        curves.setdefault(tag, []).append({"step": step, "value": value})
    return curves


def lease_in(experiment: Experiment, uuid: UUID) -> Lease:
    """Return the experiment's lease with this UUID; raise :class:`NotFoundError` if there is none."""
    lease = (
        Lease.objects.select_related("comparison")
        .filter(uuid=uuid, comparison__experiment=experiment)
        .first()
    )
    if lease is None:
        raise NotFoundError(f"There is no lease {uuid} in this experiment.")
    return lease

"""Queries for the labeling page, except those that choose the questions to ask."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar
from uuid import UUID

from django.contrib.auth.models import User
from django.core.cache import cache
from django.db.models import Count, Exists, F, Max, Min, OuterRef, QuerySet, Subquery, Window
from django.db.models.functions import Coalesce

from human_feedback_site.feedback.kinds import CANT_TELL, PAIR, on_screen
from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import (
    Comparison,
    Episode,
    Example,
    Experiment,
    Label,
    Labeler,
)
from human_feedback_site.feedback.models.querysets import (
    answered_comparisons,
    newest_decision,
    not_undone,
    since_deletion,
    watchable_episodes,
)

T = TypeVar("T")

UNDO_DEPTH = 20
EPISODES = 6
MOST_WAITING = 99
_COUNT_SECONDS = 10


class Link(TypedDict):
    """JSON object with a clip's URL."""

    url: str


@dataclass(frozen=True)
class ShownExample:
    """An example with its clips in the order of the screen."""

    kind: str
    items: Sequence[Link]
    better: str
    explanation: str
    practice: bool


def examples(experiment: Experiment) -> Sequence[ShownExample]:
    """Return the examples whose clips exist, in reverse order for odd example IDs."""
    found = experiment.examples.select_related("comparison__experiment")
    return [_shown(each) for each in found if not each.comparison.clips_gone]


def _shown(example: Example) -> ShownExample:
    comparison, swapped = example.comparison, bool(example.pk % 2)
    links = [Link(url=media_store().url(key)) for key in on_screen(comparison.keys, swapped=swapped)]
    better = comparison.question.choice_for(example.better, swapped=swapped)
    return ShownExample(comparison.kind, links, better, example.explanation, example.practice)


def newest_kind(experiment: Experiment) -> str:
    """Return the kind of the experiment's newest comparison; ``pair`` if there is none."""
    newest = experiment.comparisons.order_by("-pk").values_list("kind", flat=True).first()
    return newest or PAIR.name


def episodes(experiment: Experiment) -> Sequence[Episode]:
    """Return up to ``EPISODES`` watchable episodes, evenly spread over training."""
    return spread(list(watchable_episodes(experiment).order_by("step")))


def spread(every: Sequence[T]) -> Sequence[T]:
    """Return up to ``EPISODES`` evenly spread items, including the first and the last."""
    if len(every) <= EPISODES:
        return every
    return [every[round(place * (len(every) - 1) / (EPISODES - 1))] for place in range(EPISODES)]


@dataclass(frozen=True)
class AnsweredCounts:
    """Numbers of comparisons with counted labels, shown to labelers as progress."""

    answered: int  # all comparisons with at least one counted label
    # comparisons requested before training that have a decision other than ``cant_tell``; 0 if training has
    # begun or does not wait for labels
    before_training: int
    training: bool  # True once training has requested a comparison, even if labels are withdrawn later


def count_answered(experiment: Experiment) -> AnsweredCounts:
    """Count comparisons with counted labels; the result is cached for a few seconds.

    Every open labeling page requests these numbers, and counting reads many rows.
    """

    def count() -> AnsweredCounts:
        answered = answered_comparisons(experiment)
        before = answered.filter(phase=Comparison.Phase.PRETRAINING)
        decided = before.annotate(outcome=newest_decision("decision"))
        usable = decided.exclude(outcome=None).exclude(outcome=CANT_TELL)
        asked = experiment.comparisons.filter(phase=Comparison.Phase.TRAINING)
        training = asked.exclude(status=Comparison.Status.GOLD).exists()
        waits = experiment.pretrain_labels is not None and not training
        return AnsweredCounts(answered.count(), usable.count() if waits else 0, training)

    found: AnsweredCounts = cache.get_or_set(f"answered-{experiment.pk}", count, _COUNT_SECONDS)  # type: ignore[assignment]
    return found


def count_waiting(labeler: Labeler, experiment: Experiment) -> int:
    """Return the number of open comparisons that the labeler has not answered, up to ``MOST_WAITING``.

    Other labelers may hold leases on them.
    """
    answered = Label.objects.filter(not_undone(), labeler=labeler, comparison=OuterRef("pk"))
    unanswered = experiment.comparisons.filter(~Exists(answered), status=Comparison.Status.OPEN)
    return unanswered[:MOST_WAITING].count()


def answers_of(labeler: Labeler, experiment: Experiment) -> QuerySet[Label]:
    """Return the labeler's valid answers, newest first; a changed answer keeps its position."""
    own = Label.objects.filter(not_undone(), labeler=labeler, comparison__experiment=experiment)
    # Not by lease: pairs are shown as their clips arrive. Two labels of a lease mean that the answer changed.
    first = Label.objects.filter(lease=OuterRef("lease")).order_by("pk").values("pk")[:1]
    return own.exclude(status=Label.Status.VOID).order_by(Subquery(first).desc(), "-pk")


def recent_answers(labeler: Labeler, experiment: Experiment) -> list[UUID]:
    """Return the UUIDs of the last ``UNDO_DEPTH`` valid answers, newest last, for repeated undo."""
    newest = answers_of(labeler, experiment).order_by("-pk")
    return list(newest.values_list("uuid", flat=True)[:UNDO_DEPTH])[::-1]


@dataclass(frozen=True)
class BeforeAfter:
    """First and newest episode video of an experiment, each identified by its environment step."""

    first: int
    newest: int
    # number of answers that the agent of the newest video had been trained on; None if unknown
    answered: int | None
    own: int  # number of these comparisons that have a counted answer by the labeler


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
        experiment: BeforeAfter(first, newest, answered, own if answered is None else min(own, answered))
        for experiment, first, newest, answered, own in found.values_list(
            "experiment", "first", "newest", "answered", "own"
        )
        if answered != 0
    }

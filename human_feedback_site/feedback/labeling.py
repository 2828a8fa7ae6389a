"""Reads: what a labeler is shown beside the pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict
from uuid import UUID

from django.core.cache import cache
from django.db.models import QuerySet

from human_feedback_site.feedback.media import media_store
from human_feedback_site.feedback.models import Comparison, Example, Experiment, Label, Labeler, Outcome
from human_feedback_site.feedback.services.leases import standing

UNDO_DEPTH = 20
_COUNT_SECONDS = 10


class Link(TypedDict):
    """Where a clip is."""

    url: str


class EpisodeLink(TypedDict):
    """Where the film of a whole episode is, and at which step it was made."""

    step: int
    url: str


@dataclass(frozen=True)
class ShownExample:
    """An example with the sides of the screen fixed."""

    left: Link
    right: Link
    better: str
    explanation: str
    practice: bool


def examples(experiment: Experiment) -> Sequence[ShownExample]:
    """Return the examples whose clips are there; the better clip is not always on the same side."""
    found = experiment.examples.select_related("comparison__experiment")
    return [_shown(each) for each in found if not each.comparison.clips_deleted]


def _shown(example: Example) -> ShownExample:
    comparison, swapped = example.comparison, bool(example.pk % 2)
    links = [Link(url=media_store().url(key)) for key in (comparison.first_key, comparison.second_key)]
    left, right = reversed(links) if swapped else links
    better = side_of(Outcome(example.better), swapped=swapped)
    return ShownExample(left, right, better, example.explanation, example.practice)


def side_of(outcome: Outcome, *, swapped: bool) -> str:
    """Return the screen choice that says ``outcome``."""
    if outcome not in {Outcome.FIRST, Outcome.SECOND}:
        return outcome.value
    return Label.Choice.LEFT if (outcome == Outcome.FIRST) != swapped else Label.Choice.RIGHT


def latest_episode(experiment: Experiment) -> EpisodeLink | None:
    """Return the newest film of a whole episode, unless it was deleted with the clips."""
    newest = experiment.episodes.order_by("-step").first()
    deleted_at = experiment.media_deleted_at
    if newest is None or (deleted_at is not None and newest.created_at <= deleted_at):
        return None
    return EpisodeLink(step=newest.step, url=media_store().url(newest.key))


def answered_by_all(experiment: Experiment) -> int:
    """Count pairs with an answer, a few seconds ago: every open page asks, and the count reads many rows."""

    def count() -> int:
        real = Comparison.objects.filter(experiment=experiment).exclude(status=Comparison.Status.GOLD)
        return real.filter(n_labels__gt=0).count()

    return int(cache.get_or_set(f"answered-{experiment.pk}", count, _COUNT_SECONDS) or 0)


def answers_of(labeler: Labeler, experiment: Experiment) -> QuerySet[Label]:
    """Return the labeler's answers that stand, newest first; a changed one keeps its place."""
    own = Label.objects.filter(standing(), labeler=labeler, comparison__experiment=experiment)
    return own.exclude(status=Label.Status.VOID).order_by("-lease", "-pk")


def recent_answers(labeler: Labeler, experiment: Experiment) -> list[UUID]:
    """Return the answers that can be taken back one after the other, the newest last."""
    newest = answers_of(labeler, experiment).order_by("-pk")
    return list(newest.values_list("uuid", flat=True)[:UNDO_DEPTH])[::-1]

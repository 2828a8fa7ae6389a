"""Reads: how an experiment goes just now, for a page that stays open: few statements, whatever there is."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.cache import cache
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback.models import Experiment, Label
from human_feedback_site.feedback.models.querysets import not_undone
from human_feedback_site.feedback.selectors import crowd, labeling
from human_feedback_site.feedback.selectors.experiments import (
    Point,
    Progress,
    active_labelers,
    learning_curves,
    progress_of,
)

RATE_MINUTES = 10
POINTS = 600  # of a curve: more than a screen can show
_CROWD_SECONDS = 10.0
_CROWD_SHARE = 20  # times as long as reading how labelers do takes, it is not read again


@dataclass(frozen=True)
class CrowdQuality:
    """How labelers agree, and how each of them does."""

    agreement: crowd.Agreement
    labelers: Sequence[crowd.LabelerQuality]


@dataclass(frozen=True)
class ExperimentStatus:
    """An experiment just now.

    Attributes:
        rate: answers per minute, of those that stand, in the last :data:`RATE_MINUTES`, or since it began.
        minutes_left: until all labels wanted are there, at that rate; None where it cannot be told.
        queue_minutes: for how long the oldest open pair has been waiting.
        points: the values of each curve, (step, value), thinned.
        active: ids of the labelers who are at it.
        films: steps at which whole episodes were filmed, the newest first.
    """

    progress: Progress
    rate: float
    minutes_left: float | None
    queue_minutes: float | None
    points: Mapping[str, Sequence[Point]]
    crowd: CrowdQuality
    active: frozenset[int]
    films: Sequence[int]

    def latest(self, tag: str) -> float | None:
        """Return the newest value of a curve."""
        return self.points[tag][-1]["value"] if tag in self.points else None


def status_now(experiment: Experiment) -> ExperimentStatus:
    """Return how the experiment goes."""
    progress = progress_of(experiment)
    rate = _rate(experiment)
    return ExperimentStatus(
        progress=progress,
        rate=rate,
        minutes_left=_minutes_left(experiment, progress, rate),
        queue_minutes=None if progress.waiting_since is None else _minutes_since(progress.waiting_since),
        points=learning_curves(experiment, POINTS),
        crowd=_crowd(experiment),
        active=frozenset(active_labelers(experiment).values_list("labeler", flat=True)),
        films=[each.step for each in reversed(labeling.episodes(experiment))],
    )


def _rate(experiment: Experiment) -> float:
    """Look only at the labelers of the experiment: labels are found by labeler and time."""
    given = Label.objects.filter(
        not_undone(),
        ~Q(status=Label.Status.VOID),
        comparison__experiment=experiment,
        labeler__participations__experiment=experiment,
        created_at__gt=Now() - timedelta(minutes=RATE_MINUTES),
    ).count()
    return given / min(max(_minutes_since(experiment.created_at), 1.0), RATE_MINUTES)


def _minutes_since(moment: datetime) -> float:
    return (timezone.now() - moment).total_seconds() / 60


def _minutes_left(experiment: Experiment, progress: Progress, rate: float) -> float | None:
    if experiment.n_labels is None or not rate or experiment.state == Experiment.State.FINISHED:
        return None
    pairs = max(0, experiment.n_labels - progress.answered)
    more = experiment.overlap_share * (experiment.overlap_more - experiment.overlap)
    return pairs * (experiment.overlap + more) / rate


def _crowd(experiment: Experiment) -> CrowdQuality:
    """Read it anew now and then: it takes all labels, and every open page asks."""
    name = _crowd_key(experiment)
    kept: CrowdQuality | None = cache.get(name)
    if kept is None:
        begun = time.perf_counter()
        kept = CrowdQuality(crowd.agreement(experiment), crowd.labelers(experiment))
        cache.set(name, kept, max(_CROWD_SECONDS, _CROWD_SHARE * (time.perf_counter() - begun)))
    return kept


def forget_crowd(experiment: Experiment) -> None:
    """Read how labelers do anew at the next look."""
    cache.delete(_crowd_key(experiment))


def _crowd_key(experiment: Experiment) -> str:
    return f"crowd-{experiment.pk}"

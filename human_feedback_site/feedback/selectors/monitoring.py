"""Live status of an experiment, read with few SQL statements because open pages poll it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.cache import cache
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback.models import Experiment, Label
from human_feedback_site.feedback.models.querysets import not_undone, watchable_episodes
from human_feedback_site.feedback.selectors import crowd
from human_feedback_site.feedback.selectors.experiments import (
    Point,
    Progress,
    active_labelers,
    learning_curves,
    progress_of,
)
from human_feedback_site.feedback.selectors.study import StudyReport, study_of

RATE_MINUTES = 10
POINTS = 600  # per curve: more than a screen can show
_CROWD_SECONDS = 10.0
_CROWD_SHARE = 20  # labeler statistics are cached for 20 times as long as they took to compute


@dataclass(frozen=True)
class Film:
    """Video of an episode, with the rewards that the newest predictor predicts for it; None if not known."""

    step: int
    answered: int | None
    rewards: Sequence[float] | None

    @property
    def score(self) -> float:
        """Return the average predicted reward of the episode's steps."""
        return sum(self.rewards or ()) / len(self.rewards or "-")


def films_of(experiment: Experiment) -> Sequence[Film]:
    """Return the experiment's watchable films, oldest first."""
    rows = watchable_episodes(experiment).order_by("step")
    return [Film(*row) for row in rows.values_list("step", "answered", "rewards")]


@dataclass(frozen=True)
class CrowdQuality:
    """Agreement among an experiment's labelers, each labeler's quality statistics, and a study's result."""

    agreement: crowd.Agreement
    labelers: Sequence[crowd.LabelerQuality]
    study: StudyReport | None  # comparison of the kinds of questions


@dataclass(frozen=True)
class ExperimentStatus:
    """Current status of an experiment."""

    progress: Progress
    # valid answers per minute over the last :data:`RATE_MINUTES` minutes, or since the experiment began if
    # that is more recent
    rate: float
    # estimated minutes until all requested labels are given, based on ``rate``; None if unknown
    minutes_left: float | None
    queue_minutes: float | None  # age of the oldest open comparison in minutes; None if none is open
    points: Mapping[str, Sequence[Point]]  # learning curves keyed by tag; long curves are downsampled
    crowd: CrowdQuality
    active: frozenset[int]  # IDs of the labelers who are active now
    films: Sequence[Film]

    def latest(self, tag: str) -> float | None:
        """Return the newest value of the curve ``tag``, or None if it has no points."""
        return self.points[tag][-1]["value"] if tag in self.points else None


def status_now(experiment: Experiment) -> ExperimentStatus:
    """Return the current status of the experiment."""
    progress = progress_of(experiment)
    rate, points = _rate(experiment), learning_curves(experiment, POINTS)
    return ExperimentStatus(
        progress=progress,
        rate=rate,
        minutes_left=_minutes_left(experiment, progress, rate),
        queue_minutes=None if progress.waiting_since is None else _minutes_since(progress.waiting_since),
        points=points,
        crowd=_crowd(experiment, points),
        active=frozenset(active_labelers(experiment).values_list("labeler", flat=True)),
        films=films_of(experiment),
    )


def _rate(experiment: Experiment) -> float:
    """Return the experiment's valid answers per minute.

    Filtering by the experiment's labelers lets the database use the index on labeler and time.
    """
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


def _crowd(experiment: Experiment, points: Mapping[str, Sequence[Point]]) -> CrowdQuality:
    """Return the cached labeler statistics, recomputing them if they have expired."""
    name = _crowd_key(experiment)
    kept: CrowdQuality | None = cache.get(name)
    if kept is None:
        begun = time.perf_counter()
        study = study_of(experiment, points)
        kept = CrowdQuality(crowd.agreement(experiment), crowd.labelers(experiment), study)
        cache.set(name, kept, max(_CROWD_SECONDS, _CROWD_SHARE * (time.perf_counter() - begun)))
    return kept


def forget_crowd(experiment: Experiment) -> None:
    """Clear the cached labeler statistics, so that the next request recomputes them."""
    cache.delete(_crowd_key(experiment))


def _crowd_key(experiment: Experiment) -> str:
    return f"crowd-{experiment.pk}"

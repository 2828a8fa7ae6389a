"""What an experiment's page shows that changes by itself."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from django.utils.functional import Promise
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.pages.chart import Chart, line_chart
from human_feedback_site.feedback.quality.agreement import Rate
from human_feedback_site.feedback.selectors import monitoring
from human_feedback_site.feedback.selectors.crowd import LabelerQuality
from human_feedback_site.feedback.selectors.experiments import Point

# In the order in which they are shown; the first that has points is drawn large.
CURVE_TITLES: Mapping[str, str | Promise] = {
    "predictor/fresh_accuracy": _("Agreement of the predictor with fresh answers"),
    "agent/behaviour_per_episode": _("Behavior per episode, by the run’s own function"),
    "agent/predicted_reward_per_episode": _("Predicted reward per episode"),
    "predictor/accuracy": _("Agreement of the predictor with held-out answers"),
    "predictor/loss": _("Loss of the predictor"),
    "predictor/validation_loss": _("Loss of the predictor on held-out answers"),
}
# Folded away: what people want is not what the environment pays.
ENVIRONMENT_TITLES: Mapping[str, str | Promise] = {
    "agent/true_reward_per_episode": _("The environment’s own reward per episode"),
    "predictor/rank_correlation": _("Rank correlation of predicted reward and the environment’s own"),
    "predictor/correlation": _("Correlation of predicted reward and the environment’s own"),
    "predictor/true_reward_loss": _("Loss of the environment’s own reward on the answers"),
}
_TITLES = {**CURVE_TITLES, **ENVIRONMENT_TITLES}
# Shown as numbers and a bar; as curves they only grow, or tell little.
_NOT_DRAWN = ("agent/total_steps", "labels/", "time/")
NONE = "–"


@dataclass(frozen=True)
class Figure:
    """A number and what it is of; ``due`` ones ask for something to be done."""

    value: str
    name: str
    explanation: str = ""
    due: bool = False


@dataclass(frozen=True)
class Curve:
    """A titled chart."""

    tag: str
    title: str
    chart: Chart


@dataclass(frozen=True)
class Share:
    """A share of answers, and what to know of it."""

    value: str
    note: str


@dataclass(frozen=True)
class LabelerRow:
    """How a labeler does; ``shares`` are right gold answers, consensus, left and repeats."""

    pk: int
    name: str
    standing: str
    answers: int
    shares: Sequence[Share]
    seconds: str


@dataclass(frozen=True)
class Live:
    """All that is shown and changes by itself; ``experiment`` besides, of which this names the state."""

    state: str
    prompt: str
    away_since: datetime | None
    answered: int
    asked: int
    figures: Sequence[Figure]
    pace: Sequence[Figure]
    curves: Sequence[Curve]
    environment_curves: Sequence[Curve]
    more_curves: Sequence[Curve]
    labelers: Sequence[LabelerRow]
    films: Sequence[int]

    @property
    def etag(self) -> str:
        """A digest of what is shown."""
        return f'"{hashlib.sha256(f"{get_language()}{self!r}".encode()).hexdigest()}"'


def shown_of(experiment: Experiment) -> Live:
    """Return what is shown of an experiment, which knows since when its trainer is away (``away_since``)."""
    away_since = cast("datetime | None", experiment.away_since)  # type: ignore[attr-defined]  # by the query
    status = monitoring.status_now(experiment)
    known = [tag for tag in CURVE_TITLES if tag in status.points]
    own = [tag for tag in ENVIRONMENT_TITLES if tag in status.points]
    others = [tag for tag in status.points if tag not in _TITLES and not tag.startswith(_NOT_DRAWN)]
    return Live(
        state=experiment.state,
        prompt=experiment.prompt,
        away_since=away_since,
        answered=status.progress.answered,
        asked=status.progress.asked,
        figures=_figures(experiment, status, away_since),
        pace=_pace(experiment, status),
        curves=_curves(status.points, known),
        environment_curves=_curves(status.points, own),
        more_curves=_curves(status.points, others),
        labelers=[_row(each, at_it=each.labeler in status.active) for each in status.crowd.labelers],
        films=status.films,
    )


def _figures(
    experiment: Experiment, status: monitoring.ExperimentStatus, away_since: datetime | None
) -> Sequence[Figure]:
    progress, due = status.progress, status.latest("labels/desired")
    waits = experiment.state == Experiment.State.RUNNING and away_since is None
    waiting_for = experiment.waiting_for if waits else None
    return [
        _figure(str(progress.asked), _("asked")),
        _figure(
            NONE if due is None else str(round(due)),
            _("due"),
            _("Labels that should have been asked for by now, by the schedule of the run"),
        ),
        _figure(str(progress.open), _("open")),
        _figure(str(len(status.active)), _("labeling now")),
        _figure(str(waiting_for or NONE), _("training waits for"), due=bool(waiting_for)),
    ]


def _pace(experiment: Experiment, status: monitoring.ExperimentStatus) -> Sequence[Figure]:
    accuracy, agreement = status.latest("predictor/accuracy"), status.crowd.agreement
    left, waited = status.latest("time/seconds_left"), status.latest("time/seconds_waited")
    is_over = experiment.state == Experiment.State.FINISHED
    return [
        _figure(
            _duration(None if left is None or is_over else left / 60),
            _("of training left"),
            _("What the trainer’s terminal says: without the time that it waits for answers"),
        ),
        _figure(
            _duration(None if waited is None else waited / 60),
            _("waited for answers"),
            _("For how long training was held up in all"),
        ),
        _figure(f"{status.rate:.1f}", _("answers a minute"), _("In the last ten minutes")),
        _figure(
            _duration(status.minutes_left),
            _("to the last answer"),
            _("Until all labels wanted are there, at that rate"),
        ),
        _figure(
            _duration(status.queue_minutes), _("oldest open pair"), _("For how long it has been waiting")
        ),
        _figure(
            NONE if accuracy is None else f"{accuracy:.0%}",
            _("held-out accuracy"),
            _("How often the predictor says what labelers say of pairs that it was not fitted on"),
        ),
        _figure(
            NONE if agreement.alpha is None else f"{agreement.alpha:.2f}",
            _("agreement over %(n)s pairs") % {"n": agreement.pairs},
            _("Krippendorff’s alpha of pairs that were judged more than once: 1 is agreement, 0 is chance"),
        ),
    ]


def _figure(value: str, name: str | Promise, explanation: str | Promise = "", *, due: bool = False) -> Figure:
    return Figure(value, str(name), str(explanation), due)


def _duration(minutes: float | None) -> str:
    """Return a time in its largest unit, coarsely: what changes little is shown as the same."""
    if minutes is None:
        return NONE
    if minutes < 1:
        return f"< {_('%(minutes)s min') % {'minutes': 1}}"
    if minutes < 90:
        return str(_("%(minutes)s min") % {"minutes": f"{minutes:.0f}"})
    hours = minutes / 60
    if hours < 48:
        return str(_("%(hours)s h") % {"hours": f"{hours:.1f}"})
    return str(_("%(days)s d") % {"days": f"{hours / 24:.1f}"})


def _row(quality: LabelerQuality, *, at_it: bool) -> LabelerRow:
    low, high = quality.left.interval
    return LabelerRow(
        pk=quality.labeler,
        name=quality.name,
        standing=quality.notice or ("active" if at_it else ""),
        answers=quality.answers,
        shares=[
            *(_share(rate, f"/ {rate.total}") for rate in (quality.gold, quality.consensus)),
            _share(quality.left, f"{low:.0%}–{high:.0%}"),
            _share(quality.consistency, f"/ {quality.consistency.total}"),
        ],
        seconds=NONE
        if quality.seconds is None
        else str(_("%(seconds)s s") % {"seconds": f"{quality.seconds:.1f}"}),
    )


def _share(rate: Rate, note: str) -> Share:
    return Share(NONE, "") if rate.value is None else Share(f"{rate.value:.0%}", note)


def _curves(points: Mapping[str, Sequence[Point]], tags: Sequence[str]) -> Sequence[Curve]:
    charts = {tag: line_chart([(point["step"], point["value"]) for point in points[tag]]) for tag in tags}
    return [Curve(tag, str(_TITLES.get(tag, tag)), chart) for tag, chart in charts.items() if chart]

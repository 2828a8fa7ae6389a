"""Live section of the experiment page: figures, learning curves and labeler statistics."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from django.db.models import QuerySet
from django.utils.functional import Promise
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.pages.charts import Chart, line_chart
from human_feedback_site.feedback.pages.story import state_sentence, story_of
from human_feedback_site.feedback.quality.agreement import Rate
from human_feedback_site.feedback.selectors import monitoring
from human_feedback_site.feedback.selectors.crowd import LabelerQuality
from human_feedback_site.feedback.selectors.experiments import Point
from human_feedback_site.feedback.selectors.study import StudyReport

# In display order; the first curve that has points is drawn large.
CURVE_TITLES: Mapping[str, str | Promise] = {
    "predictor/fresh_accuracy": _("Predictor agreement with new answers"),
    "agent/behaviour_per_episode": _("Behavior score per episode, from the run’s own function"),
    "agent/predicted_reward_per_episode": _("Predicted reward per episode"),
    "predictor/accuracy": _("Predictor agreement with held-out answers"),
    "predictor/contradictions": _("Share of answers that contradict the predictor"),
    "predictor/label_errors": _("Share of answers that contradict the predictor"),  # from earlier trainers
    "predictor/dropped_labels": _("Share of contradicting answers dropped"),
    "predictor/loss": _("Predictor loss"),
    "predictor/validation_loss": _("Predictor loss on held-out answers"),
}
# Collapsed on the page, because labelers teach a behavior, not the environment's reward.
ENVIRONMENT_TITLES: Mapping[str, str | Promise] = {
    "agent/true_reward_per_episode": _("The environment’s own reward per episode"),
    "agent/success_rate": _("Success rate, as reported by the environment"),
    "predictor/rank_correlation": _("Rank correlation of predicted reward with the environment’s own"),
    "predictor/correlation": _("Correlation of predicted reward with the environment’s own"),
    "predictor/true_reward_loss": _("Loss of the environment’s own reward on the labels"),
}
_TITLES = {**CURVE_TITLES, **ENVIRONMENT_TITLES}
# Curves that can't show systematic mistakes.
_CHECKED_BY_PEOPLE = ("predictor/contradictions", "predictor/label_errors")
# Shown as figures and a progress bar; as curves they would only grow or say little.
_NOT_DRAWN = ("agent/total_steps", "labels/", "time/", "study/")
NONE = "–"


@dataclass(frozen=True)
class Figure:
    """Number with a name and a tooltip; highlighted if it is ``due``, that is, someone needs to act."""

    value: str
    name: str
    explanation: str = ""
    due: bool = False


@dataclass(frozen=True)
class Curve:
    """Chart with its title, its TensorBoard tag, and notes to show below it."""

    tag: str
    title: str
    chart: Chart
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Share:
    """Percentage in the labeler table, with a note: the number of answers or a confidence interval."""

    value: str
    note: str


@dataclass(frozen=True)
class LabelerRow:
    """Row of the labeler table.

    ``shares`` are, in column order: attention-check pass rate, agreement with the consensus, left-clip rate,
    and consistency on repeated questions.
    """

    pk: int
    name: str
    mark: str
    standing: str
    answers: int
    shares: Sequence[Share]
    seconds: str


@dataclass(frozen=True)
class StudyRow:
    """Row of the table that compares kinds of questions.

    ``shares`` are, in column order: "can't tell", repeats, consensus, and held-out answers predicted.
    """

    title: str
    answers: int
    seconds: Share
    shares: Sequence[Share]


@dataclass(frozen=True)
class Study:
    """The table that compares kinds of questions, and the labeling time after which it does."""

    time: str
    rows: Sequence[StudyRow]


def live_view_of(experiment: Experiment, managed: QuerySet[Experiment], other: str) -> dict[str, Any]:
    """Return the live section's data and its HTTP ETag.

    Args:
        experiment: annotated with ``away_since``.
        managed: the experiments that the user manages.
        other: name of an experiment to show in the same chart; empty for none.
    """
    away_since = cast("datetime | None", experiment.away_since)  # type: ignore[attr-defined]  # annotated by the query
    status = monitoring.status_now(experiment)
    left = _duration(status.minutes_left) if status.minutes_left is not None else ""
    siblings = managed.filter(owner=experiment.owner_id).exclude(pk=experiment.pk)
    known = [tag for tag in CURVE_TITLES if tag in status.points]
    own = [tag for tag in ENVIRONMENT_TITLES if tag in status.points]
    others = [tag for tag in status.points if tag not in _TITLES and not tag.startswith(_NOT_DRAWN)]
    shown = {
        "state": experiment.state,
        "prompt": experiment.prompt,
        "away_since": away_since,
        "open": status.progress.open,
        "answered": status.progress.answered,
        "asked": status.progress.asked,
        "sentence": state_sentence(experiment, status, away_since, left),
        "story": story_of(status, siblings, other),
        "figures": _figures(experiment, status, away_since),
        "pace": _pace(experiment, status, away_since),
        "curves": [_checked(curve, status.crowd.labelers) for curve in _curves(status.points, known)],
        "environment_curves": _curves(status.points, own),
        "more_curves": _curves(status.points, others),
        "study": _study(status.crowd.study),
        "labelers": [_row(each, is_active=each.labeler in status.active) for each in status.crowd.labelers],
    }
    digest = hashlib.sha256(f"{get_language()}{shown!r}".encode()).hexdigest()
    return {**shown, "etag": f'"{digest}"'}


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
            _("Labels that should have been requested by now, according to the run’s schedule"),
        ),
        _figure(str(progress.open), _("open")),
        _figure(str(len(status.active)), _("labeling now")),
        _figure(str(waiting_for or NONE), _("answers training is waiting for"), due=bool(waiting_for)),
    ]


def _pace(
    experiment: Experiment, status: monitoring.ExperimentStatus, away_since: datetime | None
) -> Sequence[Figure]:
    accuracy, agreement = status.latest("predictor/accuracy"), status.crowd.agreement
    left, waited = status.latest("time/seconds_left"), status.latest("time/seconds_waited")
    is_over = experiment.state == Experiment.State.FINISHED or away_since is not None
    return [
        _figure(
            _duration(None if left is None or is_over else left / 60),
            _("training time left"),
            _("The trainer’s own estimate, not counting time spent waiting for answers"),
        ),
        _figure(
            _duration(None if waited is None else waited / 60),
            _("spent waiting for answers"),
            _("Total time that training has waited for answers"),
        ),
        _figure(
            _duration(None if is_over else status.minutes_left),
            _("until the last answer"),
            _("Time until all requested labels are in, at the current rate"),
        ),
        _figure(
            _duration(status.queue_minutes), _("oldest open question"), _("How long it has been waiting")
        ),
        _figure(
            NONE if accuracy is None else f"{accuracy:.0%}",
            _("held-out accuracy"),
            _("How often the predictor agrees with labelers on comparisons it was not trained on"),
        ),
        _figure(
            NONE if agreement.alpha is None else f"{agreement.alpha:.2f}",
            _("agreement over %(n)s questions") % {"n": agreement.questions},
            _("Krippendorff’s alpha over questions answered repeatedly: 1 is perfect agreement, 0 is chance"),
        ),
    ]


def _figure(value: str, name: str | Promise, explanation: str | Promise = "", *, due: bool = False) -> Figure:
    return Figure(value, str(name), str(explanation), due)


def _duration(minutes: float | None) -> str:
    """Format ``minutes`` as minutes, hours or days, rounded so that the ETag rarely changes."""
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


def _row(quality: LabelerQuality, *, is_active: bool) -> LabelerRow:
    return LabelerRow(
        pk=quality.labeler,
        name=quality.name,
        mark=quality.mark,
        standing=quality.notice or ("active" if is_active else ""),
        answers=quality.answers,
        shares=[
            *(_share(rate, f"/ {rate.total}") for rate in (quality.gold, quality.consensus)),
            _with_interval(quality.side),
            _share(quality.consistency, f"/ {quality.consistency.total}"),
        ],
        seconds=NONE
        if quality.seconds is None
        else str(_("%(seconds)s s") % {"seconds": f"{quality.seconds:.1f}"}),
    )


def _study(report: StudyReport | None) -> Study | None:
    if report is None:
        return None
    rows = []
    for each in report.kinds:
        seconds, accuracy = Share(NONE, ""), Share(NONE, "")
        if each.seconds is not None:
            low, high = each.seconds_interval or (0.0, 0.0)
            note = f"{low:.1f}–{high:.1f}" if each.seconds_interval else ""
            seconds = Share(str(_("%(seconds)s s") % {"seconds": f"{each.seconds:.1f}"}), note)
        if each.accuracy is not None:
            note = f"{each.accuracy.low:.0%}–{each.accuracy.high:.0%}"
            accuracy = Share(f"{each.accuracy.value:.0%}", note)
        rates = [_with_interval(rate) for rate in (each.cant_tell, each.repeats, each.consensus)]
        rows.append(StudyRow(str(each.kind.title), each.answers, seconds, [*rates, accuracy]))
    return Study(_duration(report.minutes), rows)


def _with_interval(rate: Rate) -> Share:
    low, high = rate.interval
    return _share(rate, f"{low:.0%}–{high:.0%}")


def _share(rate: Rate, note: str) -> Share:
    return Share(NONE, "") if rate.value is None else Share(f"{rate.value:.0%}", note)


def _checked(curve: Curve, labelers: Sequence[LabelerQuality]) -> Curve:
    """Add to a curve of contradicting answers what checks of the labelers say about wrong answers."""
    if curve.tag not in _CHECKED_BY_PEOPLE:
        return curve
    checks = (
        (_("Attention checks failed: %(share)s of %(total)s"), [each.gold for each in labelers]),
        (
            _("Repeated questions answered differently: %(share)s of %(total)s"),
            [each.consistency for each in labelers],
        ),
        (
            _("Answers that differ from most others’: %(share)s of %(total)s"),
            [each.consensus for each in labelers],
        ),
    )
    notes = [str(_("Mistakes with a pattern are learned, so they are not in this share."))]
    for text, rates in checks:
        if total := sum(rate.total for rate in rates):
            missed = total - sum(rate.hits for rate in rates)
            notes.append(str(text % {"share": f"{missed / total:.0%}", "total": total}))
    if len(notes) == 1:
        notes.append(str(_("Attention checks, repeats or overlap would show some of them.")))
    return replace(curve, notes=notes)


def _curves(points: Mapping[str, Sequence[Point]], tags: Sequence[str]) -> Sequence[Curve]:
    charts = {tag: line_chart([(point["step"], point["value"]) for point in points[tag]]) for tag in tags}
    return [Curve(tag, str(_TITLES.get(tag, tag)), chart) for tag, chart in charts.items() if chart]

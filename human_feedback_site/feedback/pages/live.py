"""Live section of the experiment page: figures, learning curves and labeler statistics."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from django.utils.functional import Promise
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.quality.agreement import Rate
from human_feedback_site.feedback.selectors import monitoring
from human_feedback_site.feedback.selectors.crowd import LabelerQuality
from human_feedback_site.feedback.selectors.experiments import Point
from human_feedback_site.feedback.selectors.study import StudyReport

# Positions in charts are percentages of the plot area: a chart stretches while its text keeps its size.
PATH_UNITS = 1000  # side of the path's square coordinate system, which the template stretches over the plot
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Tick:
    """Axis tick, with its text and its position in percent from the left (x axis) or top (y axis)."""

    position: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Data from which the template draws a line chart with one curve."""

    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    path: str
    end: tuple[float, float]
    latest: str


def line_chart(points: Sequence[tuple[float, float]]) -> Chart | None:
    """Return a line chart of ``points``, or None if no point has a finite value.

    ``points`` are (step, value) pairs sorted by step; those with NaN or infinite values are skipped. The
    horizontal axis starts at step 0.
    """
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    x_high = max(*xs, 1.0)
    y_values = nice_ticks(min(ys), max(ys), 5)
    y_low, y_high = y_values[0], y_values[-1]

    def percent(x: float, y: float) -> tuple[float, float]:
        return round(100 * x / x_high, 2), round(100 * (y_high - y) / (y_high - y_low), 2)

    placed = [percent(x, y) for x, y in points]
    scale = PATH_UNITS / 100
    x_values = [x for x in nice_ticks(0.0, x_high, 6) if x <= x_high]
    return Chart(
        x_ticks=[Tick(percent(x, y_low)[0], short_number(x)) for x in x_values],
        y_ticks=[Tick(percent(0.0, y)[1], short_number(y)) for y in y_values],
        path="M" + "L".join(f"{x * scale:.1f} {y * scale:.1f}" for x, y in placed),
        end=placed[-1],
        latest=short_number(ys[-1]),
    )


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return round tick values that enclose ``low`` and ``high``, with about ``wanted`` intervals.

    The tick spacing is 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", Graphics
    Gems, 1990).
    """
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = abs(high) / 2 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def short_number(value: float) -> str:
    """Return ``value`` with at most three significant digits and an SI suffix: 1.2M, 350k, 0.05, -3."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"


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


def live_view_of(experiment: Experiment) -> dict[str, Any]:
    """Return the live section's data and its HTTP ETag; ``experiment`` is annotated with ``away_since``."""
    away_since = cast("datetime | None", experiment.away_since)  # type: ignore[attr-defined]  # annotated by the query
    status = monitoring.status_now(experiment)
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
        "figures": _figures(experiment, status, away_since),
        "pace": _pace(experiment, status, away_since),
        "curves": [_checked(curve, status.crowd.labelers) for curve in _curves(status.points, known)],
        "environment_curves": _curves(status.points, own),
        "more_curves": _curves(status.points, others),
        "study": _study(status.crowd.study),
        "labelers": [_row(each, is_active=each.labeler in status.active) for each in status.crowd.labelers],
        "films": status.films,
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

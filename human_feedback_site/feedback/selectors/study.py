"""Results of a study of kinds of questions: how long answers of each kind take, and how much they teach."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from human_feedback_site.feedback.kinds import CANT_TELL, KINDS, Kind
from human_feedback_site.feedback.models import Experiment, Label
from human_feedback_site.feedback.models.querysets import not_undone
from human_feedback_site.feedback.quality.agreement import Rate, wilson_interval
from human_feedback_site.feedback.selectors import crowd
from human_feedback_site.feedback.selectors.experiments import Point

_Z = 1.96  # standard normal quantile for a 95% interval
_TAG = "study/"
_HELD_OUT = "study/held_out"


@dataclass(frozen=True)
class Accuracy:
    """Share of held-out answers that a predictor fitted to one kind's answers predicts, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class KindReport:
    """Results for one kind, with 95% intervals."""

    kind: Kind
    answers: int  # number of valid answers, without checks
    seconds: float | None  # median time per answer
    seconds_interval: tuple[float, float] | None
    cant_tell: Rate
    repeats: Rate  # repeated questions that got the same answer as before
    consensus: Rate  # answers that match most others' to the same question
    accuracy: Accuracy | None  # after ``StudyReport.minutes`` of labeling with this kind alone


@dataclass(frozen=True)
class StudyReport:
    """Comparison of the kinds, at equal time: as many minutes as people have spent on each kind."""

    minutes: float | None
    kinds: Sequence[KindReport]


def study_of(experiment: Experiment, points: Mapping[str, Sequence[Point]]) -> StudyReport | None:
    """Return what a study found; None if the experiment is none.

    Args:
        experiment: the experiment.
        points: learning curves; ``study/KIND/N`` is the accuracy after N answers of a kind, and
            ``study/held_out`` the number of questions that it was measured on.
    """
    if not experiment.compares_kinds:
        return None
    newest = {tag: curve[-1]["value"] for tag, curve in points.items() if tag.startswith(_TAG) and curve}
    times = _times(experiment)
    seconds = {kind: median(own) / 1000 for kind, own in times.items() if own}
    curves = {kind: _curve(newest, kind) for kind in KINDS}
    spent = [curve[-1][0] * seconds[kind] for kind, curve in curves.items() if curve and kind in seconds]
    shared = min(spent) if len(spent) > 1 else None
    held_out = round(newest.get(_HELD_OUT, 0))
    return StudyReport(
        None if shared is None else shared / 60,
        [
            _report(
                experiment,
                kind,
                times.get(name, []),
                None
                if shared is None or name not in seconds
                else _accuracy(curves[name], shared / seconds[name], held_out),
            )
            for name, kind in KINDS.items()
        ],
    )


def _report(
    experiment: Experiment, kind: Kind, times: Sequence[int], accuracy: Accuracy | None
) -> KindReport:
    labels = Label.objects.filter(
        not_undone(),
        comparison__experiment=experiment,
        comparison__kind=kind.name,
        status__in=(Label.Status.COUNTED, Label.Status.SURPLUS),
    )
    answers = labels.count()
    return KindReport(
        kind,
        answers,
        median(times) / 1000 if times else None,
        _median_interval(times),
        Rate(labels.filter(answer=CANT_TELL).count(), answers),
        _total(crowd.consistency_on(experiment, [kind])),
        _total(crowd.consensus_on(experiment, [kind])),
        accuracy,
    )


def _total(rates: Mapping[int, Rate]) -> Rate:
    return Rate(sum(rate.hits for rate in rates.values()), sum(rate.total for rate in rates.values()))


def _times(experiment: Experiment) -> Mapping[str, Sequence[int]]:
    """Return the response times in milliseconds of each kind's answers, sorted."""
    timed = Label.objects.filter(
        not_undone(),
        comparison__experiment=experiment,
        status=Label.Status.COUNTED,
        response_ms__isnull=False,
    )
    found: dict[str, list[int]] = {}
    for kind, time in timed.order_by("response_ms").values_list("comparison__kind", "response_ms"):
        found.setdefault(kind, []).append(time or 0)
    return found


def _median_interval(times: Sequence[int]) -> tuple[float, float] | None:
    """Return the median's interval in seconds from sorted times, by the binomial distribution of ranks."""
    if len(times) < 6:  # fewer don't enclose 95%
        return None
    half = _Z * math.sqrt(len(times)) / 2
    low, high = math.floor(len(times) / 2 - half), math.ceil(len(times) / 2 + half)
    return times[max(0, low)] / 1000, times[min(len(times) - 1, high)] / 1000


def _curve(newest: Mapping[str, float], kind: str) -> Sequence[tuple[float, float]]:
    """Return a kind's accuracy by number of answers, fewest first."""
    begin = f"{_TAG}{kind}/"
    tags = (tag for tag in newest if tag.startswith(begin) and tag.removeprefix(begin).isdecimal())
    return sorted((float(tag.removeprefix(begin)), newest[tag]) for tag in tags)


def _accuracy(curve: Sequence[tuple[float, float]], answers: float, held_out: int) -> Accuracy | None:
    """Interpolate the accuracy after a number of answers; None if it was not measured with so few."""
    if not curve or answers < curve[0][0]:
        return None
    value = curve[-1][1]
    for (fewer, low), (more, high) in pairwise(curve):
        if fewer <= answers <= more:
            value = low + (high - low) * math.log(answers / fewer) / math.log(more / fewer)
    return Accuracy(value, *wilson_interval(round(value * held_out), held_out))

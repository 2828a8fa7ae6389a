"""Figures about all current experiments for monitoring systems, read with three SQL statements.

They come from the database alone, so every web process reports the same figures, also after a restart.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from django.db.models import Count, F, FloatField, Min, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, Length, Now, Replace
from django.db.models.lookups import GreaterThanOrEqual, LessThan

from human_feedback_site.feedback.models import Comparison, Experiment, Lease, Participation
from human_feedback_site.feedback.models.querysets import live_leases

SHOWN_AFTER_END = timedelta(minutes=10)  # so that monitoring sees an experiment's last labels
CHECKS_NEEDED = 5
_FIRST, _SECOND = 0, 2  # indices of the classes in a confusion matrix
_NO_PAIRS = {"open": 0, "age": timedelta(0)}
_NO_LABELERS = {"given": 0, "withdrawn": 0, "live": 0, "below_chance": 0}


Figures: TypeAlias = Mapping[str, float | None]


def current_figures() -> dict[str, Figures]:
    """Return named figures about each experiment, by name, except those that ended over ten minutes ago."""
    ended = Q(state=Experiment.State.FINISHED, finished_at__lt=Now() - SHOWN_AFTER_END)
    current = Experiment.objects.exclude(ended).order_by("pk")
    pairs, labelers = _open_pairs(current), _labelers(current)
    rows = current.values("pk", "name", "state", "waiting_for", "feed_cursor").annotate(
        last_seq=F("counter__last_seq"), silence=Now() - F("trainer_seen_at")
    )
    return {
        row["name"]: _figures(
            {**row, **pairs.get(row["pk"], _NO_PAIRS), **labelers.get(row["pk"], _NO_LABELERS)}
        )
        for row in rows
    }


def _figures(row: Mapping[str, Any]) -> Figures:
    last_seq, cursor, silence = row["last_seq"], row["feed_cursor"], row["silence"]
    is_running = row["state"] == Experiment.State.RUNNING
    return {
        "labels": row["given"],
        "withdrawn_labels": row["withdrawn"],
        "decisions": last_seq,
        "live_leases": row["live"],
        "open_comparisons": row["open"],
        "oldest_open_comparison_seconds": max(0.0, row["age"].total_seconds()),
        "awaited_labels": (row["waiting_for"] or 0) if is_running else 0,
        "trainer_silence_seconds": None if silence is None else max(0.0, silence.total_seconds()),
        "feed_lag_decisions": None if cursor is None else max(0, last_seq - cursor),
        "labelers_below_chance": row["below_chance"],
    }


def _open_pairs(experiments: QuerySet[Experiment]) -> dict[int, Mapping[str, Any]]:
    """Return the number of open comparisons and the age of the oldest one, keyed by experiment ID."""
    pairs = Comparison.objects.filter(status=Comparison.Status.OPEN, experiment__in=experiments.values("pk"))
    counted = pairs.order_by().values("experiment").annotate(open=Count("pk"), age=Now() - Min("created_at"))
    return {each["experiment"]: each for each in counted}


def _labelers(experiments: QuerySet[Experiment]) -> dict[int, Mapping[str, Any]]:
    """Return the numbers of labels, live leases and labelers below chance, keyed by experiment ID.

    Leases are counted for each labeler, so that the database uses the index on labeler and expiry time.
    """
    own = Lease.objects.filter(
        live_leases(), labeler=OuterRef("labeler"), comparison__experiment=OuterRef("experiment")
    )
    live = Subquery(own.order_by().values("labeler").annotate(count=Count("pk")).values("count"))
    found = Participation.objects.filter(experiment__in=experiments.values("pk")).order_by()
    counted = found.values("experiment").annotate(
        given=Sum("answers"),
        withdrawn=Sum("undone"),
        live=Sum(Coalesce(live, 0)),
        below_chance=Count("pk", filter=is_below_chance()),
    )
    return {each["experiment"]: each for each in counted}


def is_below_chance() -> Q:
    """Return a ``Q`` filter that matches participations of labelers who are wrong more often than right.

    They have failed most of their latest attention checks, if there are at least ``CHECKS_NEEDED``; or the
    Dawid-Skene model estimates that they choose the worse clip of a pair more often than the better one.
    Labelers who were stopped don't match.
    """
    checks, passed = Length("gold_checks"), Length(Replace("gold_checks", Value("0")))
    failed_checks = Q(GreaterThanOrEqual(checks, CHECKS_NEEDED)) & Q(LessThan(passed * 2, checks))
    right = _confusion(_FIRST, _FIRST) + _confusion(_SECOND, _SECOND)
    wrong = _confusion(_FIRST, _SECOND) + _confusion(_SECOND, _FIRST)
    return Q(stopped_at=None) & (failed_checks | Q(LessThan(right, wrong)))


def _confusion(truth: int, answer: int) -> Cast:
    """Return an SQL expression for one probability of a confusion matrix; NULL if there is no matrix."""
    return Cast(KeyTextTransform(answer, KeyTransform(truth, "confusion")), FloatField())

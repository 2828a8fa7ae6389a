"""Figures about all current experiments for monitoring systems, read with four SQL statements.

They come from the database alone, so every web process reports the same figures, also after a restart.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from django.db.models import Count, F, Min, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Now

from human_feedback_site.feedback.kinds import KINDS, by_kind
from human_feedback_site.feedback.models import Comparison, Experiment, Lease, Participation
from human_feedback_site.feedback.models.querysets import live_leases

SHOWN_AFTER_END = timedelta(minutes=10)  # so that monitoring sees an experiment's last labels
CHECKS_NEEDED = 5
_NO_QUESTIONS = {"open": 0, "age": timedelta(0)}
_NO_LABELERS = {"given": 0, "withdrawn": 0, "live": 0}


Figures: TypeAlias = Mapping[str, float | None]


def current_figures() -> dict[str, Figures]:
    """Return named figures about each experiment, by name, except those that ended over ten minutes ago."""
    ended = Q(state=Experiment.State.FINISHED, finished_at__lt=Now() - SHOWN_AFTER_END)
    current = Experiment.objects.exclude(ended).order_by("pk")
    questions, labelers, below = _open_questions(current), _labelers(current), _below_chance(current)
    rows = current.values("pk", "name", "state", "waiting_for", "feed_cursor").annotate(
        last_seq=F("counter__last_seq"), silence=Now() - F("trainer_seen_at")
    )
    return {
        row["name"]: _figures(
            {**row, **questions.get(row["pk"], _NO_QUESTIONS), **labelers.get(row["pk"], _NO_LABELERS)},
            below[row["pk"]],
        )
        for row in rows
    }


def _figures(row: Mapping[str, Any], below: int) -> Figures:
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
        "labelers_below_chance": below,
    }


def _open_questions(experiments: QuerySet[Experiment]) -> dict[int, Mapping[str, Any]]:
    """Return the number of open comparisons and the age of the oldest one, keyed by experiment ID."""
    found = Comparison.objects.filter(status=Comparison.Status.OPEN, experiment__in=experiments.values("pk"))
    counted = found.order_by().values("experiment").annotate(open=Count("pk"), age=Now() - Min("created_at"))
    return {each["experiment"]: each for each in counted}


def _labelers(experiments: QuerySet[Experiment]) -> dict[int, Mapping[str, Any]]:
    """Return the numbers of labels and live leases, keyed by experiment ID.

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
    )
    return {each["experiment"]: each for each in counted}


def _below_chance(experiments: QuerySet[Experiment]) -> Counter[int]:
    """Return the number of labelers below chance who were not stopped, keyed by experiment ID."""
    known = Participation.objects.filter(experiment__in=experiments.values("pk"), stopped_at=None)
    known = known.filter(Q(confusion__isnull=False) | ~Q(gold_checks="")).order_by()
    columns = known.values_list("experiment", "gold_checks", "confusion").iterator()
    return Counter(pk for pk, checks, confusion in columns if is_below_chance(checks, confusion))


def is_below_chance(checks: str, confusion: Any) -> bool:
    """Return True for labelers who are wrong more often than right.

    They have failed most of their latest attention checks, if there are at least ``CHECKS_NEEDED``; or the
    Dawid-Skene model estimates that their answers to some kind are more often the contrary of what is true.
    """
    fails = len(checks) >= CHECKS_NEEDED and checks.count("1") * 2 < len(checks)
    return fails or any(KINDS[kind].is_below_chance(matrix) for kind, matrix in by_kind(confusion).items())

"""Labels that wait take places that became free, and what they change is decided anew.

A label that found no free place waits (its status is ``surplus``). The next free place is its own: nobody is
given a lease on it. So it does not matter when the label begins to count, only that it does: at once where
somebody frees a place, and soon where a lease merely expires, because trainers, labelers who find no work and
a chore look for such labels.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease
from human_feedback_site.feedback.models.querysets import (
    live_leases,
    lock_comparisons,
    not_undone,
    waiting_labels,
)
from human_feedback_site.feedback.queue.leases import LeaseGrant, LeaseRequest, lease_comparisons
from human_feedback_site.feedback.queue.participants import Participant
from human_feedback_site.feedback.services.decisions import decide_anew

_AT_ONCE = 200


def give_work(who: Participant, request: LeaseRequest) -> LeaseGrant:
    """Lease comparisons to a labeler; where there are none for it, look for labels that wait."""
    grant = lease_comparisons(who, request)
    if grant.is_empty:
        settle(who.experiment)
    return grant


def _on_open_comparisons() -> QuerySet[Label]:
    """Return labels that wait for a place of a comparison that is asked."""
    return waiting_labels().filter(comparison__status=Comparison.Status.OPEN)


def _with_free_place() -> QuerySet[Label]:
    """Return labels that wait though there is a free place."""
    taken = _count(_leases_to_judge().filter(comparison=OuterRef("comparison")))
    free = F("comparison__wanted") - F("comparison__n_labels") - taken
    return _on_open_comparisons().annotate(free=free).filter(free__gt=0)


def _leases_to_judge() -> QuerySet[Lease]:
    return Lease.objects.filter(live_leases(), purpose=Lease.Purpose.JUDGE)


def _count(rows: QuerySet[Any]) -> Coalesce:
    """Count the rows of a subquery that belong to one comparison."""
    counted = rows.order_by().values("comparison").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted), 0)


def settle(experiment: int, until: float = float("inf")) -> int:
    """Let the labels of an experiment that wait take the places that are free; return how many they were.

    It takes one statement where there are none. No more batches are begun when :func:`time.monotonic` passes
    ``until``. It locks comparisons: no transaction calls it that holds a lock of what is locked after these.
    """
    own = _with_free_place().filter(comparison__experiment=experiment).order_by("comparison")
    comparisons = own.values_list("comparison", flat=True).distinct()
    promoted, last = 0, 0
    while time.monotonic() < until:
        found = list(comparisons.filter(comparison__gt=last)[:_AT_ONCE])
        if found:
            promoted += _settle(found)
            last = found[-1]
        if len(found) < _AT_ONCE:
            break
    return promoted


@transaction.atomic
def _settle(comparisons: Collection[int]) -> int:
    lock_comparisons(Comparison.objects.filter(pk__in=comparisons))
    return len(promote_waiting(comparisons))


def settle_all(experiments: Iterable[int]) -> None:
    """Do :func:`settle` for each of these."""
    for experiment in sorted(set(experiments)):
        settle(experiment)


def experiments_to_settle() -> list[int]:
    """Return the experiments in which a label waits for a place that is free."""
    found = _with_free_place().order_by("comparison__experiment")
    return list(found.values_list("comparison__experiment", flat=True).distinct())


def with_waiting(experiment: int) -> set[int]:
    """Return the open comparisons of an experiment that have a label which waits."""
    own = _on_open_comparisons().filter(comparison__experiment=experiment)
    return set(own.values_list("comparison", flat=True))


def promote_waiting(comparisons: Collection[int], changed: Collection[int] = ()) -> set[UUID]:
    """Let labels that wait take the free places of these locked comparisons, the oldest first.

    What that changes, and what is ``changed`` already, is decided anew. Returns the labels that count now.
    """
    if not comparisons:
        return set()
    asked = (Comparison.Status.OPEN, Comparison.Status.ANSWERED)
    own = {"comparison": OuterRef("pk")}
    counted = Label.objects.filter(not_undone(), status=Label.Status.COUNTED, **own)
    places = F("wanted") - _count(_leases_to_judge().filter(**own)) - _count(counted)
    rows = Comparison.objects.filter(pk__in=comparisons, status__in=asked).annotate(free=places)
    free = dict(rows.filter(free__gt=0).values_list("pk", "free"))
    promoted = []
    for label in waiting_labels().filter(comparison__in=free).order_by("pk") if free else ():
        if free[label.comparison_id] > 0:
            free[label.comparison_id] -= 1
            promoted.append(label)
    Label.objects.filter(pk__in=[label.pk for label in promoted]).update(status=Label.Status.COUNTED)
    _decide({label.comparison_id for label in promoted} | set(changed))
    return {label.uuid for label in promoted}


def _decide(comparisons: Collection[int]) -> None:
    """Decide locked comparisons anew; counters of the feed are locked in the order of their experiments."""
    of_experiments: dict[int, list[Comparison]] = defaultdict(list)
    for comparison in Comparison.objects.filter(pk__in=comparisons).order_by("experiment_id", "id"):
        of_experiments[comparison.experiment_id].append(comparison)
    experiments = Experiment.everything.in_bulk(of_experiments)
    for experiment, own in of_experiments.items():
        decide_anew(experiments[experiment], own)

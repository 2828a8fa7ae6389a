"""Promotion of surplus labels to counted ones when a label slot becomes free.

If no slot is free, a label waits with the status ``surplus``. The next free slot is reserved for it and not
leased to anyone, so it doesn't matter exactly when the label is counted. When an action frees a slot, the
label is counted at once. When a lease expires, the label is counted soon afterward, because trainers,
labelers who find no work, and a periodic task all trigger a search for waiting labels.
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
    """Lease comparisons to a labeler and return the grant.

    If the grant is empty, also promote the experiment's waiting labels.
    """
    grant = lease_comparisons(who, request)
    if grant.is_empty:
        settle(who.experiment)
    return grant


def _on_open_comparisons() -> QuerySet[Label]:
    """Return the surplus labels that are waiting for a slot of an open comparison."""
    return waiting_labels().filter(comparison__status=Comparison.Status.OPEN)


def _with_free_slot() -> QuerySet[Label]:
    """Return the surplus labels whose comparison has a free slot."""
    taken = _count(_leases_to_judge().filter(comparison=OuterRef("comparison")))
    free = F("comparison__wanted") - F("comparison__n_labels") - taken
    return _on_open_comparisons().annotate(free=free).filter(free__gt=0)


def _leases_to_judge() -> QuerySet[Lease]:
    return Lease.objects.filter(live_leases(), purpose=Lease.Purpose.JUDGE)


def _count(rows: QuerySet[Any]) -> Coalesce:
    """Return a subquery that counts ``rows``, which must be correlated with the outer query."""
    counted = rows.order_by().values("comparison").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted), 0)


def settle(experiment: int, until: float = float("inf")) -> int:
    """Promote the experiment's waiting labels where slots are free; return how many were promoted.

    If none can be promoted, this takes only one query. Starts no new batch once :func:`time.monotonic` passes
    ``until``. Locks comparisons, so don't call it in a transaction that has already locked labeler or
    counter rows.
    """
    own = _with_free_slot().filter(comparison__experiment=experiment).order_by("comparison")
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
    """Call :func:`settle` for each of these experiment IDs."""
    for experiment in sorted(set(experiments)):
        settle(experiment)


def experiments_to_settle() -> list[int]:
    """Return the IDs of experiments in which a label is waiting although a slot is free."""
    found = _with_free_slot().order_by("comparison__experiment")
    return list(found.values_list("comparison__experiment", flat=True).distinct())


def with_waiting(experiment: int) -> set[int]:
    """Return the IDs of the experiment's open comparisons that have a waiting label."""
    own = _on_open_comparisons().filter(comparison__experiment=experiment)
    return set(own.values_list("comparison", flat=True))


def promote_waiting(comparisons: Collection[int], changed: Collection[int] = ()) -> set[UUID]:
    """Promote waiting labels, oldest first, to the free slots of these locked comparisons.

    Recomputes the decisions of the affected comparisons and of those in ``changed``. Returns the UUIDs of the
    promoted labels.
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
    _decide_by_experiment({label.comparison_id for label in promoted} | set(changed))
    return {label.uuid for label in promoted}


def _decide_by_experiment(comparisons: Collection[int]) -> None:
    """Recompute the decisions of locked comparisons, locking feed counters in order of experiment ID."""
    of_experiments: dict[int, list[Comparison]] = defaultdict(list)
    for comparison in Comparison.objects.filter(pk__in=comparisons).order_by("experiment_id", "id"):
        of_experiments[comparison.experiment_id].append(comparison)
    experiments = Experiment.everything.in_bulk(of_experiments)
    for experiment, own in of_experiments.items():
        decide_anew(experiments[experiment], own)

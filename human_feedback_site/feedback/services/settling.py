"""Labels that wait take places that became free, and what they change is decided anew.

A label that found no free place waits (its status is ``surplus``). The next free place is its own: nobody is
given a lease on it. So it does not matter when the label begins to count, only that it does: at once where
somebody frees a place, and soon where a lease merely expires, because trainers, labelers who find no work and
a chore look for such labels.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from uuid import UUID

from django.db import transaction

from human_feedback_site.feedback.models import Comparison, Experiment
from human_feedback_site.feedback.queue.claims import Participant
from human_feedback_site.feedback.queue.leases import LeaseGrant, LeaseRequest, lease_comparisons, lock
from human_feedback_site.feedback.queue.sql import rows, uuid_of
from human_feedback_site.feedback.services.decisions import decide_anew

_AT_ONCE = 200
_OPEN_WITH_WAITING = """
    FROM feedback_label a JOIN feedback_comparison c ON c.id = a.comparison_id
    WHERE c.status = 'open' AND {eligible}"""
_HAS_FREE_PLACE = " AND c.n_labels + {places_taken} < c.wanted"
_PROMOTE = """
    UPDATE feedback_label SET status = 'counted'
    WHERE id IN (
        SELECT queued.id FROM (
            SELECT a.id, ROW_NUMBER() OVER (PARTITION BY c.id ORDER BY a.id) AS place,
                   c.wanted - {places_taken} - (
                       SELECT COUNT(*) FROM feedback_label d LEFT JOIN feedback_undo t ON t.label_id = d.id
                       WHERE d.comparison_id = c.id AND d.status = 'counted' AND t.id IS NULL) AS free
            FROM feedback_label a JOIN feedback_comparison c ON c.id = a.comparison_id
            WHERE c.id IN ({comparisons}) AND c.status IN ('open', 'answered') AND {eligible}) AS queued
        WHERE queued.place <= queued.free)
    RETURNING comparison_id, uuid"""


def give_work(who: Participant, request: LeaseRequest) -> LeaseGrant:
    """Lease comparisons to a labeler; where there are none for it, look for labels that wait."""
    grant = lease_comparisons(who, request)
    if grant.settle:
        settle(who.experiment)
    return grant


def settle(experiment: int, until: float = float("inf")) -> int:
    """Let the labels of an experiment that wait take the places that are free; return how many they were.

    It takes one statement where there are none. No more batches are begun when :func:`time.monotonic` passes
    ``until``. It locks comparisons: no transaction calls it that holds a lock of what is locked after these.
    """
    promoted, last = 0, 0
    while time.monotonic() < until:
        found = rows(
            f"SELECT DISTINCT c.id {_OPEN_WITH_WAITING} {_HAS_FREE_PLACE}"
            " AND c.experiment_id = %s AND c.id > %s ORDER BY c.id LIMIT {most}",
            [experiment, last],
            most=str(_AT_ONCE),
        )
        if found:
            promoted += _settle([comparison for (comparison,) in found])
            last = found[-1][0]
        if len(found) < _AT_ONCE:
            break
    return promoted


@transaction.atomic
def _settle(comparisons: Collection[int]) -> int:
    lock(Comparison.objects.filter(pk__in=comparisons))
    return len(fill(comparisons))


def settle_all(experiments: Iterable[int]) -> None:
    """Do :func:`settle` for each of these."""
    for experiment in sorted(set(experiments)):
        settle(experiment)


def experiments_to_settle() -> list[int]:
    """Return the experiments in which a label waits for a place that is free."""
    found = rows(f"SELECT DISTINCT c.experiment_id {_OPEN_WITH_WAITING} {_HAS_FREE_PLACE}", [])
    return sorted(experiment for (experiment,) in found)


def with_waiting(experiment: int) -> set[int]:
    """Return the open comparisons of an experiment that have a label which waits."""
    found = rows(
        f"SELECT DISTINCT c.id {_OPEN_WITH_WAITING} AND c.experiment_id = %s",
        [experiment],
    )
    return {comparison for (comparison,) in found}


def fill(comparisons: Collection[int], changed: Collection[int] = ()) -> set[UUID]:
    """Let labels that wait take the free places of these locked comparisons, the oldest first.

    What that changes, and what is ``changed`` already, is decided anew. Returns the labels that count now.
    """
    if not comparisons:
        return set()
    promoted = rows(_PROMOTE, list(comparisons), comparisons=", ".join(["%s"] * len(comparisons)))
    _decide({comparison for comparison, _ in promoted} | set(changed))
    return {uuid_of(uuid) for _, uuid in promoted}


def _decide(comparisons: Collection[int]) -> None:
    """Decide locked comparisons anew; counters of the feed are locked in the order of their experiments."""
    of_experiments: dict[int, list[Comparison]] = defaultdict(list)
    for comparison in Comparison.objects.filter(pk__in=comparisons).order_by("experiment_id", "id"):
        of_experiments[comparison.experiment_id].append(comparison)
    experiments = Experiment.everything.in_bulk(of_experiments)
    for experiment, own in of_experiments.items():
        decide_anew(experiments[experiment], own)

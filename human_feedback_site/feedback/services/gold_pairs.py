"""What researchers do about quality: gold pairs, and labelers who are stopped or given work again."""

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from human_feedback_site.feedback.models import Comparison, Outcome, Participation
from human_feedback_site.feedback.models.querysets import lock_comparisons
from human_feedback_site.feedback.quality.aggregation import Verdict, majority, vote
from human_feedback_site.feedback.queue.leases import expire_leases
from human_feedback_site.feedback.services.decisions import announce
from human_feedback_site.feedback.services.settling import fill, settle_all


@transaction.atomic
def make_gold(chosen: QuerySet[Comparison], answer: Outcome) -> int:
    """Say that the answer to these is known; labels of them are checks from now on. Returns how many.

    A trainer that asked about one is told the answer, because no label will tell it. Cancelled ones stay so,
    and those whose clips are gone stay as they are.
    """
    found = lock_comparisons(chosen.exclude(status=Comparison.Status.CANCELLED).order_by())
    rows = [row for row in found if not row.clips_gone]
    for comparison in rows:
        trainer_asked = comparison.status != Comparison.Status.GOLD or comparison.decisions.exists()
        comparison.gold, comparison.status = answer, Comparison.Status.GOLD
        comparison.save(update_fields=["gold", "status"])
        if trainer_asked:
            known = majority(vote(answer), 1)
            announce(
                comparison.experiment_id,
                comparison.pk,
                Verdict(known.decision, known.probability, comparison.n_labels),
            )
    return len(rows)


@transaction.atomic
def make_ordinary(chosen: QuerySet[Comparison]) -> int:
    """Take the known answer back: what trainers asked about is judged again, the rest is cancelled.

    So is what nobody can judge because its clips are gone.
    """
    rows = lock_comparisons(chosen.filter(status=Comparison.Status.GOLD).order_by())
    asked = []
    for comparison in rows:
        comparison.gold, comparison.status = None, Comparison.Status.CANCELLED
        if comparison.decisions.exists() and not comparison.clips_gone:
            comparison.status = Comparison.Status.OPEN
            asked.append(comparison.pk)
        comparison.save(update_fields=["gold", "status"])
    fill(asked, changed=asked)
    return len(rows)


def stop(chosen: QuerySet[Participation]) -> int:
    """Give these labelers nothing more; what they hold goes to others. Returns how many were stopped."""
    experiments = _experiments_of(chosen)
    stopped = _stop(chosen)
    settle_all(experiments)
    return stopped


def _experiments_of(chosen: QuerySet[Participation]) -> list[int]:
    return list(chosen.order_by().values_list("experiment", flat=True).distinct())


@transaction.atomic
def _stop(chosen: QuerySet[Participation]) -> int:
    going_on = list(chosen.order_by("pk").filter(stopped_at=None))
    for participation in going_on:
        expire_leases(participation.labeler_id, participation.experiment_id)
    return Participation.objects.filter(pk__in=[each.pk for each in going_on]).update(stopped_at=Now())


def readmit(chosen: QuerySet[Participation]) -> int:
    """Give stopped or warned labelers work again; their checks begin anew. Returns how many there are."""
    experiments = _experiments_of(chosen)
    readmitted = chosen.order_by().update(stopped_at=None, gold_checks="", watch_checks="")
    settle_all(experiments)
    return readmitted

"""Gold pairs: those whose answer researchers say, to find out who does not look."""

from django.db import transaction
from django.db.models import QuerySet

from human_feedback_site.feedback.models import Comparison, Outcome
from human_feedback_site.feedback.models.querysets import lock_comparisons
from human_feedback_site.feedback.quality.aggregation import Verdict, majority, vote
from human_feedback_site.feedback.services.decisions import announce
from human_feedback_site.feedback.services.settling import promote_waiting


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
    promote_waiting(asked, changed=asked)
    return len(rows)

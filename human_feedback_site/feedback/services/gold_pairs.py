"""Gold pairs: comparisons whose known answer is used to check labelers' attention."""

from django.db import transaction
from django.db.models import QuerySet

from human_feedback_site.feedback.models import Comparison, Outcome
from human_feedback_site.feedback.models.querysets import lock_comparisons
from human_feedback_site.feedback.quality.aggregation import Verdict, majority, vote
from human_feedback_site.feedback.services.decisions import announce
from human_feedback_site.feedback.services.promotion import promote


@transaction.atomic
def make_gold(chosen: QuerySet[Comparison], answer: Outcome) -> int:
    """Turn comparisons into attention checks with the given answer; return how many were changed.

    If a trainer requested the comparison, the answer is also published as its decision. Canceled comparisons
    and those whose clips are gone are skipped.
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
    """Turn attention checks back into ordinary comparisons; return how many were changed.

    Comparisons that a trainer requested and whose clips still exist are reopened for labeling. All others
    are canceled.
    """
    rows = lock_comparisons(chosen.filter(status=Comparison.Status.GOLD).order_by())
    asked = []
    for comparison in rows:
        comparison.gold, comparison.status = None, Comparison.Status.CANCELLED
        if comparison.decisions.exists() and not comparison.clips_gone:
            comparison.status = Comparison.Status.OPEN
            asked.append(comparison.pk)
        comparison.save(update_fields=["gold", "status"])
    promote(asked, changed=asked)
    return len(rows)

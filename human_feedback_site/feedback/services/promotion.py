"""Promotion of surplus labels: they start to count if their comparison wants labels again.

An answer counts if its comparison still wants labels, no matter who holds leases; otherwise it is surplus. A
surplus label can start to count only if a label is withdrawn, more labels are requested, the comparison is
reopened, or its labeler is readmitted. Whatever does one of these also promotes, in the same transaction.
"""

from collections import defaultdict
from collections.abc import Collection

from django.db import transaction
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce

from human_feedback_site.feedback.models import Comparison, Experiment, Label
from human_feedback_site.feedback.models.querysets import eligible_labels, lock_comparisons, not_undone
from human_feedback_site.feedback.services.decisions import decide_anew

_AT_ONCE = 200
_Status = Comparison.Status


def promote(comparisons: Collection[int], changed: Collection[int] = ()) -> None:
    """Promote surplus labels of these locked comparisons, oldest first, while labels are wanted.

    Recomputes the decisions of the comparisons with promoted labels, and of those in ``changed``.
    """
    counted = Label.objects.filter(not_undone(), status=Label.Status.COUNTED, comparison=OuterRef("pk"))
    number = counted.order_by().values("comparison").annotate(number=Count("pk")).values("number")
    rows = Comparison.objects.filter(pk__in=comparisons, status__in=(_Status.OPEN, _Status.ANSWERED))
    lacking = rows.annotate(lack=F("wanted") - Coalesce(Subquery(number), 0)).filter(lack__gt=0)
    lack = dict(lacking.values_list("pk", "lack"))
    promoted = []
    for label in eligible_labels().filter(comparison__in=lack).order_by("pk") if lack else ():
        if lack[label.comparison_id] > 0:
            lack[label.comparison_id] -= 1
            promoted.append(label)
    Label.objects.filter(pk__in=[label.pk for label in promoted]).update(status=Label.Status.COUNTED)
    _decide_by_experiment({label.comparison_id for label in promoted} | set(changed))


def promote_all(**chosen: object) -> None:
    """Promote the surplus labels of open comparisons; ``chosen`` is a filter on labels.

    There are some after an import, or an upgrade from 0.1.0, where a label also waited for others' leases.
    """
    waiting = eligible_labels().filter(comparison__status=_Status.OPEN, **chosen)
    found = sorted(set(waiting.values_list("comparison", flat=True)))
    for start in range(0, len(found), _AT_ONCE):
        with transaction.atomic():
            some = Comparison.objects.filter(pk__in=found[start : start + _AT_ONCE])
            promote([row.pk for row in lock_comparisons(some)])


def _decide_by_experiment(comparisons: Collection[int]) -> None:
    """Recompute the decisions of locked comparisons, locking feed counters in order of experiment ID."""
    of_experiments: dict[int, list[Comparison]] = defaultdict(list)
    for comparison in Comparison.objects.filter(pk__in=comparisons).order_by("experiment_id", "id"):
        of_experiments[comparison.experiment_id].append(comparison)
    experiments = Experiment.everything.in_bulk(of_experiments)
    for experiment, own in of_experiments.items():
        decide_anew(experiments[experiment], own)

"""Decisions made from a comparison's labels, their publication in the trainers' feed, and promotion.

Sequence numbers come from the experiment's counter. The counter is incremented last in each transaction and
stays locked until the commit, so decisions become visible in the order of their numbers.

A surplus label can start to count only if a label is withdrawn, more labels are requested, the comparison is
reopened, or its labeler is readmitted. Whatever does one of these also promotes, in the same transaction.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from django.db import transaction

from human_feedback_site.feedback.kinds import PAIR, by_kind
from human_feedback_site.feedback.models import Comparison, Decision, Experiment, Label, Participation
from human_feedback_site.feedback.models.querysets import eligible_labels, lock_comparisons
from human_feedback_site.feedback.quality.aggregation import Verdict, majority, weighed
from human_feedback_site.feedback.queue.sql import raise_counter

Confusions = Mapping[int, Mapping[str, Any]]
"""Confusion matrices by labeler ID and kind, for labelers whose accuracy has been estimated."""
COUNTED_FIELDS = ("n_labels", "status")


def announce(experiment: int, comparison: int, verdict: Verdict) -> None:
    """Append a verdict to the decision feed; last in a transaction, because it locks the feed's counter."""
    [seq] = next_numbers(experiment, 1)
    Decision.objects.create(experiment_id=experiment, comparison_id=comparison, seq=seq, **vars(verdict))


def announce_all(experiment: Experiment, verdicts: Sequence[tuple[Comparison, Verdict]]) -> None:
    """Append several verdicts to the feed; call this last in a transaction, as with :func:`announce`."""
    if not verdicts:
        return
    numbers = next_numbers(experiment.pk, len(verdicts))
    Decision.objects.bulk_create(
        Decision(experiment=experiment, comparison=comparison, seq=seq, **vars(verdict))
        for seq, (comparison, verdict) in zip(numbers, verdicts, strict=True)
    )


def next_numbers(experiment: int, count: int) -> range:
    """Reserve the feed's next ``count`` sequence numbers; the counter stays locked until the commit."""
    newest = raise_counter(experiment, count)
    return range(newest - count + 1, newest + 1)


def confusions_in(experiment: int, labelers: Collection[int] | None = None) -> Confusions:
    """Return the confusion matrices of an experiment's labelers; ``labelers`` are IDs, None means all."""
    known = Participation.objects.filter(experiment=experiment, confusion__isnull=False)
    if labelers is not None:
        known = known.filter(labeler__in=labelers)
    return {labeler: by_kind(stored) for labeler, stored in known.values_list("labeler", "confusion")}


class Rule(Protocol):
    """Settings of an experiment that say what its labels decide."""

    @property
    def weighs_labelers(self) -> bool:
        """True if decisions use the Dawid-Skene model, False if they use majority vote."""

    @property
    def class_prior(self) -> Any:
        """Latest estimate of how often each answer is true; see :func:`by_kind`."""


def count_anew(
    rule: Rule, comparison: Comparison, labels: Sequence[Label], confusions: Confusions
) -> Verdict:
    """Recompute a locked comparison's label count and status; return its verdict.

    A comparison whose clips are gone is not opened again, because nobody could judge it. A settled one has
    its researcher's answer, and needs no more labels.

    ``labels`` are the comparison's counted labels. The caller must save the fields in :data:`COUNTED_FIELDS`.
    """
    comparison.n_labels = len(labels)
    if comparison.status in {Comparison.Status.OPEN, Comparison.Status.ANSWERED}:
        enough = comparison.settled is not None or comparison.n_labels >= comparison.wanted
        if comparison.status == Comparison.Status.ANSWERED and not enough and comparison.clips_gone:
            status = Comparison.Status.ANSWERED if labels else Comparison.Status.CANCELLED
        else:
            status = Comparison.Status.ANSWERED if enough else Comparison.Status.OPEN
        comparison.status = status
    kind = comparison.question
    if comparison.settled is not None:
        return replace(majority(kind, [comparison.settled]), n_labels=len(labels))
    if not rule.weighs_labelers:
        return majority(kind, [label.answer for label in labels])
    known = [(label.answer, confusions.get(label.labeler_id, {}).get(kind.name)) for label in labels]
    return weighed(kind, known, by_kind(rule.class_prior).get(kind.name))


def decide_anew(experiment: Experiment, rows: Sequence[Comparison]) -> None:
    """Recompute, save and announce locked comparisons' decisions; gold ones are not announced."""
    labels, confusions = labels_of(rows), confusions_in(experiment.pk)
    verdicts = [(row, count_anew(experiment, row, labels[row.pk], confusions)) for row in rows]
    Comparison.objects.bulk_update(rows, COUNTED_FIELDS)
    announce_all(experiment, [(row, verdict) for row, verdict in verdicts if row.gold is None])


def labels_of(rows: Sequence[Comparison]) -> Mapping[int, list[Label]]:
    """Return each comparison's counted labels, oldest first, keyed by comparison ID."""
    labels = Label.objects.filter(undo=None, comparison__in=rows, status=Label.Status.COUNTED)
    found: dict[int, list[Label]] = defaultdict(list)
    for label in labels.order_by("pk"):
        found[label.comparison_id].append(label)
    return found


_AT_ONCE = 200
_Status = Comparison.Status


def promote(comparisons: Collection[int], changed: Collection[int] = ()) -> None:
    """Promote surplus labels of locked comparisons, oldest first; decide them and ``changed`` again."""
    asked = Comparison.objects.filter(pk__in=comparisons, status__in=(_Status.OPEN, _Status.ANSWERED))
    rows = list(asked)
    counted = labels_of(rows)  # n_labels is out of date if a label has just been withdrawn
    lack = {row.pk: row.wanted - len(counted[row.pk]) for row in rows}
    promoted = []
    for label in eligible_labels().filter(comparison__in=rows).order_by("pk"):
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
    _in_batches(set(waiting.values_list("comparison", flat=True)), promote)


def _in_batches(comparisons: Collection[int], work: Callable[[Collection[int]], None]) -> None:
    """Call ``work`` with the IDs of locked comparisons, a few at a time, in a transaction of their own."""
    found = sorted(comparisons)
    for start in range(0, len(found), _AT_ONCE):
        with transaction.atomic():
            some = Comparison.objects.filter(pk__in=found[start : start + _AT_ONCE])
            work([row.pk for row in lock_comparisons(some)])


def _decide_by_experiment(comparisons: Collection[int]) -> None:
    """Recompute the decisions of locked comparisons, locking feed counters in order of experiment ID."""
    of_experiments: dict[int, list[Comparison]] = defaultdict(list)
    for comparison in Comparison.objects.filter(pk__in=comparisons).order_by("experiment_id", "id"):
        of_experiments[comparison.experiment_id].append(comparison)
    experiments = Experiment.everything.in_bulk(of_experiments)
    for experiment, own in of_experiments.items():
        decide_anew(experiments[experiment], own)


def complete_labels() -> str:
    """Complete what processes of 0.1.0 wrote, which know only pairs and store no answers.

    Store the meaning of their labels, decide comparisons with several labels again, and promote labels that
    waited for others' leases.
    """
    stored, lacking = 0, Label.objects.filter(answer="")
    if lacking.exists():
        several = set(lacking.filter(comparison__n_labels__gt=1).values_list("comparison", flat=True))
        for choice in PAIR.choices:
            for swapped in (False, True):
                chosen = lacking.filter(choice=choice, swapped=swapped)
                stored += chosen.update(answer=PAIR.meaning_of(choice, swapped=swapped))
        _in_batches(several, lambda rows: promote([], changed=rows))
    promote_all()
    return f"{stored} labels completed"

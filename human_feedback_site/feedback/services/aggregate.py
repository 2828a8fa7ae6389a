"""Re-estimation of labelers' accuracy, and revision of the decisions that depend on it."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from django.db import transaction
from django.db.models import F

from human_feedback_site.feedback.kinds import KINDS, by_kind, stored_as
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Participation,
    SequenceCounter,
)
from human_feedback_site.feedback.models.querysets import lock_comparisons, not_undone, with_decisions
from human_feedback_site.feedback.quality.aggregation import Verdict, dawid_skene
from human_feedback_site.feedback.services.decisions import (
    COUNTED_FIELDS,
    announce_all,
    confusions_in,
    count_anew,
    labels_of,
)

VOTES = 50_000  # number of newest votes used; decisions on older ones are not revised
ITERATIONS = 40
_AT_ONCE = 200
_SAME = 0.01  # changes in probability up to this size are not published


def weigh_all(until: float) -> int:
    """Re-estimate accuracy where there are new decisions; return how many decisions changed."""
    revised = 0
    changed = Experiment.objects.exclude(counter__last_seq=F("aggregated_seq")).order_by("aggregated_seq")
    for experiment in changed:
        if time.monotonic() > until:
            break
        if experiment.weighs_labelers:
            revised += weigh_labelers(experiment)
    return revised


def weigh_labelers(experiment: Experiment) -> int:
    """Re-estimate accuracy from the latest ``VOTES`` labels; return the number of revised decisions."""
    newest = SequenceCounter.objects.get(experiment=experiment).last_seq
    votes, known = _votes(experiment)
    if not votes:
        return 0
    estimates = {
        kind: dawid_skene(own, classes=KINDS[kind].classes, known=known, max_iterations=ITERATIONS)
        for kind, own in votes.items()
    }
    labelers: set[Any] = {labeler for estimate in estimates.values() for labeler in estimate.confusion}
    participations = list(experiment.participations.filter(labeler__in=labelers))
    for participation in participations:
        new = {
            kind: estimate.confusion[participation.labeler_id]
            for kind, estimate in estimates.items()
            if participation.labeler_id in estimate.confusion
        }
        participation.confusion = stored_as({**by_kind(participation.confusion), **new})
    Participation.objects.bulk_update(participations, ["confusion"], batch_size=_AT_ONCE)
    priors = {kind: estimate.prior for kind, estimate in estimates.items()}
    experiment.class_prior = stored_as({**by_kind(experiment.class_prior), **priors})
    Experiment.objects.filter(pk=experiment.pk).update(class_prior=experiment.class_prior)
    used = {comparison for own in votes.values() for comparison, _, _ in own}
    revised = revise(experiment, used - known.keys())
    Experiment.objects.filter(pk=experiment.pk).update(aggregated_seq=newest + revised)
    return revised


def _votes(experiment: Experiment) -> tuple[Mapping[str, list[tuple[int, int, str]]], dict[int, str]]:
    """Return the latest ``VOTES`` labels as votes by kind, and a dict of gold answers keyed by comparison ID.

    A vote is a ``(comparison ID, labeler ID, answer)`` tuple. If a labeler labeled a comparison more than
    once, only the latest label is used.
    """
    statuses = (Label.Status.COUNTED, Label.Status.GOLD)
    labels = Label.objects.filter(not_undone(), comparison__experiment=experiment, status__in=statuses)
    labels = labels.exclude(answer="")
    columns = ("comparison__kind", "comparison", "labeler", "answer", "comparison__gold")
    votes: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    known: dict[int, str] = {}
    seen: set[tuple[int, int]] = set()
    for kind, comparison, labeler, answer, gold in labels.order_by("-pk").values_list(*columns)[:VOTES]:
        if (comparison, labeler) not in seen:
            seen.add((comparison, labeler))
            votes[kind].append((comparison, labeler, answer))
        if gold is not None:
            known[comparison] = gold
    return votes, known


def revise_everything(experiment: Experiment) -> int:
    """Recompute the decisions of all labeled comparisons after the aggregation method changed."""
    return revise(experiment, experiment.comparisons.filter(n_labels__gt=0).values_list("pk", flat=True))


def revise(experiment: Experiment, comparisons: Iterable[int]) -> int:
    """Recompute decisions with the labelers' current confusion matrices; return how many changed."""
    confusions = confusions_in(experiment.pk)
    ids = iter(sorted(comparisons))
    revised = 0
    while batch := list(islice(ids, _AT_ONCE)):
        with transaction.atomic():
            rows = lock_comparisons(experiment.comparisons.filter(pk__in=batch, n_labels__gt=0, gold=None))
            labels = labels_of(rows)
            verdicts = [(row, count_anew(experiment, row, labels[row.pk], confusions)) for row in rows]
            Comparison.objects.bulk_update(rows, COUNTED_FIELDS)
            announced = _announced(rows)
            changed = [
                (row, verdict) for row, verdict in verdicts if _differs(verdict, announced.get(row.pk))
            ]
            announce_all(experiment, changed)
        revised += len(changed)
    return revised


def _announced(rows: Sequence[Comparison]) -> dict[int, tuple[str | None, float | None]]:
    """Return each comparison's latest decision in the feed and its probability, by comparison ID."""
    announced: Iterable[Any] = with_decisions(Comparison.objects.filter(pk__in=[row.pk for row in rows]))
    return {row.pk: (row.decision, row.probability) for row in announced}


def _differs(verdict: Verdict, announced: tuple[str | None, float | None] | None) -> bool:
    decision, probability = announced or (None, None)
    if verdict.decision != decision or verdict.probability is None or probability is None:
        return verdict.decision != decision
    return abs(verdict.probability - probability) > _SAME

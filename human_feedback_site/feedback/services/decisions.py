"""What the labels of a comparison say together, told to whoever reads the feed.

Numbers of the feed come from the experiment's counter, raised as the last thing in a transaction and locked
until it commits. So decisions become visible in the order of their numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Participation,
)
from human_feedback_site.feedback.quality.aggregation import (
    Triple,
    Verdict,
    evidence,
    majority,
    total,
    vote,
    weighed,
)
from human_feedback_site.feedback.queue.sql import raise_counter

Confusions = Mapping[int, Any]
"""Matrices by labeler, where there are any."""


def announce(experiment: int, comparison: int, verdict: Verdict) -> None:
    """Append a verdict under the experiment's next number: the last statements of a transaction."""
    [seq] = next_numbers(experiment, 1)
    Decision.objects.create(experiment_id=experiment, comparison_id=comparison, seq=seq, **vars(verdict))


def announce_all(experiment: Experiment, verdicts: Sequence[tuple[Comparison, Verdict]]) -> None:
    """Append several verdicts under the experiment's next numbers, as :func:`announce` does one."""
    if not verdicts:
        return
    numbers = next_numbers(experiment.pk, len(verdicts))
    Decision.objects.bulk_create(
        Decision(experiment=experiment, comparison=comparison, seq=seq, **vars(verdict))
        for seq, (comparison, verdict) in zip(numbers, verdicts, strict=True)
    )


def next_numbers(experiment: int, count: int) -> range:
    """Return the feed's next numbers, which are this transaction's: it ends soon."""
    newest = raise_counter(experiment, count)
    return range(newest - count + 1, newest + 1)


def score_of(outcome: str, confusion: Any, *, weighs_labelers: bool) -> Triple:
    """Return what one label adds to the scores of its comparison."""
    return evidence(outcome, confusion) if weighs_labelers else vote(outcome)


def verdict_on(
    scores: Triple, n_labels: int, prior: Sequence[float] | None, *, weighs_labelers: bool
) -> Verdict:
    """Return what the summed scores of a comparison say."""
    return weighed(scores, n_labels, prior) if weighs_labelers else majority(scores, n_labels)


def confusions_in(experiment: Experiment) -> Confusions:
    """Return the present matrix of each labeler of an experiment that has one."""
    known = Participation.objects.filter(experiment=experiment, confusion__isnull=False)
    return dict(known.values_list("labeler", "confusion"))


def count_anew(
    experiment: Experiment, comparison: Comparison, labels: Iterable[Label], confusions: Confusions
) -> Verdict:
    """Set what a locked comparison knows of its labels from those that count; return what they say.

    It is not saved: :data:`COUNTED_FIELDS` are to be.
    """
    weighs = experiment.weighs_labelers
    outcomes = [(label.verdict, confusions.get(label.labeler_id)) for label in labels]
    scores = total(score_of(outcome, matrix, weighs_labelers=weighs) for outcome, matrix in outcomes)
    comparison.score_first, comparison.score_equal, comparison.score_second = scores
    comparison.n_labels = len(outcomes)
    if comparison.status in {Comparison.Status.OPEN, Comparison.Status.ANSWERED}:
        enough = comparison.n_labels >= comparison.wanted
        comparison.status = Comparison.Status.ANSWERED if enough else Comparison.Status.OPEN
    return verdict_on(scores, len(outcomes), experiment.class_prior, weighs_labelers=weighs)


COUNTED_FIELDS = ("n_labels", "score_first", "score_equal", "score_second", "status")


def decide_anew(experiment: Experiment, rows: Sequence[Comparison]) -> None:
    """Append what the standing labels of locked comparisons now say; a known answer is not told anew."""
    labels, confusions = labels_of(rows), confusions_in(experiment)
    verdicts = [(row, count_anew(experiment, row, labels[row.pk], confusions)) for row in rows]
    Comparison.objects.bulk_update(rows, COUNTED_FIELDS)
    announce_all(experiment, [(row, verdict) for row, verdict in verdicts if row.gold is None])


def labels_of(rows: Sequence[Comparison]) -> Mapping[int, list[Label]]:
    """Return the labels that count, by comparison; none for one that has none."""
    labels = Label.objects.filter(undo=None, comparison__in=rows, status=Label.Status.COUNTED)
    found: dict[int, list[Label]] = defaultdict(list)
    for label in labels.order_by("pk"):
        found[label.comparison_id].append(label)
    return found

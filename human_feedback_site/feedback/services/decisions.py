"""Decisions made from a comparison's labels, and their publication in the trainers' feed.

Sequence numbers come from the experiment's counter. The counter is incremented last in each transaction and
stays locked until the commit, so decisions become visible in the order of their numbers.
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
"""Confusion matrices by labeler ID, for labelers whose accuracy has been estimated."""


def announce(experiment: int, comparison: int, verdict: Verdict) -> None:
    """Append a verdict to the decision feed.

    Call this last in a transaction, because it locks the feed's sequence counter.
    """
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


def score_of(outcome: str, confusion: Any, *, weighs_labelers: bool) -> Triple:
    """Return a label's contribution to its comparison's ``first``, ``equal`` and ``second`` scores.

    Uses the labeler's ``confusion`` matrix if ``weighs_labelers`` is True; otherwise counts one vote.
    """
    return evidence(outcome, confusion) if weighs_labelers else vote(outcome)


def verdict_on(
    scores: Triple, n_labels: int, prior: Sequence[float] | None, *, weighs_labelers: bool
) -> Verdict:
    """Return the verdict that follows from a comparison's summed scores."""
    return weighed(scores, n_labels, prior) if weighs_labelers else majority(scores, n_labels)


def confusions_in(experiment: Experiment) -> Confusions:
    """Return the confusion matrices of the experiment's labelers, by labeler ID."""
    known = Participation.objects.filter(experiment=experiment, confusion__isnull=False)
    return dict(known.values_list("labeler", "confusion"))


def count_anew(
    experiment: Experiment, comparison: Comparison, labels: Iterable[Label], confusions: Confusions
) -> Verdict:
    """Recompute a locked comparison's scores, label count and status; return its verdict.

    A comparison whose clips are gone is not opened again, because nobody could judge it.

    ``labels`` are the comparison's counted labels. The caller must save the fields in :data:`COUNTED_FIELDS`.
    """
    weighs = experiment.weighs_labelers
    outcomes = [(label.answer, confusions.get(label.labeler_id)) for label in labels]
    scores = total(score_of(outcome, matrix, weighs_labelers=weighs) for outcome, matrix in outcomes)
    comparison.score_first, comparison.score_equal, comparison.score_second = scores
    comparison.n_labels = len(outcomes)
    if comparison.status in {Comparison.Status.OPEN, Comparison.Status.ANSWERED}:
        enough = comparison.n_labels >= comparison.wanted
        if comparison.status == Comparison.Status.ANSWERED and not enough and comparison.clips_gone:
            status = Comparison.Status.ANSWERED if outcomes else Comparison.Status.CANCELLED
        else:
            status = Comparison.Status.ANSWERED if enough else Comparison.Status.OPEN
        comparison.status = status
    return verdict_on(scores, len(outcomes), experiment.class_prior, weighs_labelers=weighs)


COUNTED_FIELDS = ("n_labels", "score_first", "score_equal", "score_second", "status")


def decide_anew(experiment: Experiment, rows: Sequence[Comparison]) -> None:
    """Recompute the scores and decisions of locked comparisons, and save them.

    The new decisions are appended to the feed, except those of gold comparisons.
    """
    labels, confusions = labels_of(rows), confusions_in(experiment)
    verdicts = [(row, count_anew(experiment, row, labels[row.pk], confusions)) for row in rows]
    Comparison.objects.bulk_update(rows, COUNTED_FIELDS)
    announce_all(experiment, [(row, verdict) for row, verdict in verdicts if row.gold is None])


def labels_of(rows: Sequence[Comparison]) -> Mapping[int, list[Label]]:
    """Return each comparison's counted labels, oldest first, keyed by comparison ID.

    A comparison without counted labels gets an empty list.
    """
    labels = Label.objects.filter(undo=None, comparison__in=rows, status=Label.Status.COUNTED)
    found: dict[int, list[Label]] = defaultdict(list)
    for label in labels.order_by("pk"):
        found[label.comparison_id].append(label)
    return found

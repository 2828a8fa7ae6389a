"""Statistics about an experiment's labelers: each labeler's quality, and the agreement among labelers.

Each quality statistic is computed by one SQL statement that reads the experiment's labels and returns one row
per labeler. Withdrawn and void labels are left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from django.db import connection
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from human_feedback_site.feedback.kinds import KINDS, Kind
from human_feedback_site.feedback.models import Experiment, Label
from human_feedback_site.feedback.models.querysets import kinds_in, not_undone
from human_feedback_site.feedback.quality.agreement import Rate, krippendorff_alpha

_NONE = Rate(0, 0)


@dataclass(frozen=True)
class Agreement:
    """Agreement among labelers, measured on the comparisons with two or more counted labels.

    If there are several kinds, it is measured on the one with the most of these comparisons.

    ``questions`` is the number of these comparisons. ``alpha`` is Krippendorff's alpha; it is None if there
    are no such comparisons or if their labels are all the same.
    """

    alpha: float | None
    questions: int


@dataclass(frozen=True)
class LabelerQuality:
    """Quality statistics of one labeler; each ``Rate`` is a count out of a total."""

    labeler: int
    name: str
    mark: str  # kind of labeler; empty for people
    answers: int  # number of valid answers
    gold: Rate  # correct answers to questions with a known answer
    # answers that match the plurality answer of the other labelers. Ties and ``cant_tell`` answers are
    # excluded
    consensus: Rate
    # answers for the clip shown in the first place, among those for one of two; far from half suggests bias
    side: Rate
    consistency: Rate  # repeated questions that got the same answer as before
    # median response time in seconds, from when all clips start playing; None if not recorded
    seconds: float | None
    notice: str | None  # ``warned``, ``stopped``, or None
    # estimated probability of each answer for each true one, in rows, by kind. None if not estimated yet
    confusion: Sequence[Sequence[float]] | None


def agreement(experiment: Experiment) -> Agreement:
    """Return the agreement among the experiment's labelers."""
    return max(
        (_agreement(experiment, kind) for kind in kinds_in(experiment)), key=lambda each: each.questions
    )


def _agreement(experiment: Experiment, kind: Kind) -> Agreement:
    units: dict[Sequence[int], int] = {
        tuple(map(int, counts)): number for *counts, number in _rows(_units(kind), experiment)
    }
    questions = sum(number for counts, number in units.items() if sum(counts) > 1)
    return Agreement(krippendorff_alpha(units), questions)


def labelers(experiment: Experiment) -> list[LabelerQuality]:
    """Return quality statistics for each labeler who participates in the experiment, sorted by name."""
    kinds = kinds_in(experiment)
    gold, consensus = _gold(experiment), consensus_on(experiment, kinds)
    side, consistency = _side(experiment), consistency_on(experiment, kinds)
    seconds = _seconds(experiment)
    taking_part = experiment.participations.select_related("labeler", "experiment").order_by("labeler__name")
    return [
        LabelerQuality(
            labeler=each.labeler_id,
            name=each.labeler.name,
            mark=each.labeler.mark,
            answers=each.answered,
            gold=gold.get(each.labeler_id, _NONE),
            consensus=consensus.get(each.labeler_id, _NONE),
            side=side.get(each.labeler_id, _NONE),
            consistency=consistency.get(each.labeler_id, _NONE),
            seconds=seconds.get(each.labeler_id),
            notice=each.notice,
            confusion=each.confusion,
        )
        for each in taking_part
    ]


def _labels(experiment: Experiment) -> QuerySet[Any]:
    """Return labels that were not withdrawn and are not void, annotated with their ``outcome``."""
    labels = Label.objects.filter(not_undone(), comparison__experiment=experiment)
    return labels.exclude(status=Label.Status.VOID).annotate(outcome=F("answer"))


def _rates(labels: QuerySet[Any], hit: Q) -> Mapping[int, Rate]:
    counted = labels.order_by().values("labeler").annotate(hits=Count("pk", filter=hit), total=Count("pk"))
    return {each["labeler"]: Rate(each["hits"], each["total"]) for each in counted}


def _gold(experiment: Experiment) -> Mapping[int, Rate]:
    answers = _labels(experiment).filter(status=Label.Status.GOLD, comparison__gold__isnull=False)
    columns = ("labeler", "comparison__kind", "outcome", "comparison__gold")
    counted = answers.order_by().values_list(*columns).annotate(count=Count("pk"))
    return _summed(
        (labeler, count if KINDS[kind].passes(answer, gold) else 0, count)
        for labeler, kind, answer, gold, count in counted
    )


def consensus_on(experiment: Experiment, kinds: Sequence[Kind]) -> Mapping[int, Rate]:
    """Return how many of each labeler's answers to these kinds match most others', by labeler ID."""
    return _summed((row[0], row[1], row[2]) for kind in kinds for row in _rows(_agreeing(kind), experiment))


def _summed(rows: Iterable[tuple[int, int, int]]) -> Mapping[int, Rate]:
    """Return the sums of hits and totals, from rows of labeler ID, hits and total."""
    found: dict[int, Rate] = {}
    for labeler, hits, total in rows:
        before = found.get(labeler, _NONE)
        found[labeler] = Rate(before.hits + int(hits), before.total + int(total))
    return found


def _side(experiment: Experiment) -> Mapping[int, Rate]:
    of_two = [kind for kind in KINDS.values() if kind.size == 2]
    better = {choice: kind.best_of(choice) for kind in of_two for choice in kind.choices}
    chosen = [choice for choice, place in better.items() if place is not None]
    labels = _labels(experiment).filter(choice__in=chosen)
    return _rates(labels, Q(choice__in=[choice for choice in chosen if better[choice] == 0]))


def consistency_on(experiment: Experiment, kinds: Sequence[Kind]) -> Mapping[int, Rate]:
    """Return how many repeats of these kinds each labeler answered as before, by labeler ID."""
    own = _labels(experiment).filter(comparison=OuterRef("comparison"), labeler=OuterRef("labeler"))
    before = Subquery(own.filter(status=Label.Status.COUNTED).values("outcome")[:1])
    again = _labels(experiment).filter(status=Label.Status.REPEAT).annotate(before=before)
    again = again.filter(comparison__kind__in=[kind.name for kind in kinds])
    return _rates(again.filter(before__isnull=False), Q(outcome=F("before")))


def _seconds(experiment: Experiment) -> Mapping[int, float]:
    """Return each labeler's median response time in seconds, keyed by labeler ID."""
    timed = _labels(experiment).filter(response_ms__isnull=False)
    placed = timed.annotate(
        count=Window(Count("pk"), partition_by="labeler"),
        place=Window(RowNumber(), partition_by="labeler", order_by="response_ms"),
    )
    middle = placed.filter(Q(place=(F("count") + 1) / 2) | Q(place=(F("count") + 2) / 2))
    found: dict[int, list[int]] = defaultdict(list)
    for labeler, milliseconds in middle.values_list("labeler", "response_ms"):
        found[labeler].append(milliseconds)
    return {labeler: mean(times) / 1000 for labeler, times in found.items()}


# Statements for one kind; the answers' names in them are the kind's own, so nothing foreign is inserted.


def _votes(kind: Kind) -> str:
    """Return a table expression with a row per counted label, with a 1 in the answer's column."""
    columns = ", ".join(
        f"CASE a.answer WHEN '{answer}' THEN 1 ELSE 0 END AS v{at}" for at, answer in _numbered(kind)
    )
    return f"""
    votes AS (
        SELECT a.comparison_id, a.labeler_id, {columns}
        FROM feedback_comparison c
        JOIN feedback_label a ON a.comparison_id = c.id
        LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE c.experiment_id = %s AND c.kind = '{kind.name}' AND u.id IS NULL AND a.status = 'counted'
          AND a.answer NOT IN ('cant_tell', ''))"""  # noqa: S608


def _numbered(kind: Kind) -> Sequence[tuple[int, str]]:
    return list(enumerate(kind.classes))


def _units(kind: Kind) -> str:
    """Return the statement for the number of comparisons with each combination of vote counts."""
    columns = ", ".join(f"v{at}" for at, _ in _numbered(kind))
    sums = ", ".join(f"SUM(v{at}) AS v{at}" for at, _ in _numbered(kind))
    return f"""
    WITH {_votes(kind)},
         units AS (SELECT {sums} FROM votes GROUP BY comparison_id)
    SELECT {columns}, COUNT(*) FROM units GROUP BY {columns}"""  # noqa: S608


def _agreeing(kind: Kind) -> str:
    """Return the statement for agreement with others, per labeler.

    It counts the votes that match the most common vote of the comparison's other labelers, and the votes for
    which there is a single most common one.
    """
    numbers = [at for at, _ in _numbered(kind)]
    own = ", ".join(f"v{at}" for at in numbers)
    others = ", ".join(f"SUM(v{at}) OVER same - v{at} AS o{at}" for at in numbers)
    mostly = {at: " AND ".join(f"o{at} > o{other}" for other in numbers if other != at) for at in numbers}
    marks = ", ".join(f"({condition}) AS m{at}" for at, condition in mostly.items())
    return f"""
    WITH {_votes(kind)},
         others AS (
            SELECT labeler_id, {own}, {others} FROM votes WINDOW same AS (PARTITION BY comparison_id)),
         judged AS (SELECT labeler_id, {own}, {marks} FROM others)
    SELECT labeler_id,
           SUM(CASE WHEN {" OR ".join(f"v{at} = 1 AND m{at}" for at in numbers)} THEN 1 ELSE 0 END),
           COUNT(*)
    FROM judged WHERE {" OR ".join(f"m{at}" for at in numbers)}
    GROUP BY labeler_id"""  # noqa: S608


def _rows(statement: str, experiment: Experiment) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [experiment.pk])
        found: list[tuple[int, ...]] = cursor.fetchall()
    return found

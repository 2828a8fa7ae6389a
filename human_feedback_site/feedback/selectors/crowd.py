"""Statistics about an experiment's labelers: each labeler's quality, and the agreement among labelers.

Each quality statistic is computed by one SQL statement that reads the experiment's labels and returns one row
per labeler. Withdrawn and void labels are left out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from django.db import connection
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from human_feedback_site.feedback.models import Experiment, Label
from human_feedback_site.feedback.models.querysets import not_undone
from human_feedback_site.feedback.quality.agreement import Rate, krippendorff_alpha

_NONE = Rate(0, 0)


@dataclass(frozen=True)
class Agreement:
    """Agreement among labelers, measured on the comparisons with two or more counted labels.

    ``pairs`` is the number of these comparisons. ``alpha`` is Krippendorff's alpha; it is None if there are
    no such comparisons or if their labels are all the same.
    """

    alpha: float | None
    pairs: int


@dataclass(frozen=True)
class LabelerQuality:
    """Quality statistics of one labeler; each ``Rate`` is a count out of a total."""

    labeler: int
    name: str
    answers: int  # number of valid answers
    gold: Rate  # correct answers to pairs with a known answer
    # answers that match the plurality answer of the other labelers. Ties and ``cant_tell`` answers are
    # excluded
    consensus: Rate
    # share of ``left`` among ``left`` and ``right`` answers; a share far from 0.5 suggests side bias
    left: Rate
    consistency: Rate  # repeated pairs that got the same answer as before
    # median response time in seconds, from when both clips start playing; None if not recorded
    seconds: float | None
    notice: str | None  # ``warned``, ``stopped``, or None
    # estimated probability of each answer (first, equal, second) for each true outcome; rows are true
    # outcomes. None if not estimated yet
    confusion: Sequence[Sequence[float]] | None


def agreement(experiment: Experiment) -> Agreement:
    """Return the agreement among the experiment's labelers."""
    units: dict[Sequence[int], int] = {
        tuple(map(int, counts)): number for *counts, number in _rows(_UNITS, experiment)
    }
    pairs = sum(number for counts, number in units.items() if sum(counts) > 1)
    return Agreement(krippendorff_alpha(units), pairs)


def labelers(experiment: Experiment) -> list[LabelerQuality]:
    """Return quality statistics for each labeler who participates in the experiment, sorted by name."""
    gold, consensus = _gold(experiment), _consensus(experiment)
    left, consistency, seconds = _left(experiment), _consistency(experiment), _seconds(experiment)
    taking_part = experiment.participations.select_related("labeler", "experiment").order_by("labeler__name")
    return [
        LabelerQuality(
            labeler=each.labeler_id,
            name=each.labeler.name,
            answers=each.answered,
            gold=gold.get(each.labeler_id, _NONE),
            consensus=consensus.get(each.labeler_id, _NONE),
            left=left.get(each.labeler_id, _NONE),
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
    return _rates(answers, Q(outcome=F("comparison__gold")))


def _consensus(experiment: Experiment) -> Mapping[int, Rate]:
    return {labeler: Rate(int(hits), int(total)) for labeler, hits, total in _rows(_CONSENSUS, experiment)}


def _left(experiment: Experiment) -> Mapping[int, Rate]:
    sides = (Label.Choice.LEFT, Label.Choice.RIGHT)
    return _rates(_labels(experiment).filter(choice__in=sides), Q(choice=Label.Choice.LEFT))


def _consistency(experiment: Experiment) -> Mapping[int, Rate]:
    own = _labels(experiment).filter(comparison=OuterRef("comparison"), labeler=OuterRef("labeler"))
    before = Subquery(own.filter(status=Label.Status.COUNTED).values("outcome")[:1])
    again = _labels(experiment).filter(status=Label.Status.REPEAT).annotate(before=before)
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


# One row per counted label, without cant_tell.
_VOTES = """
    votes AS (
        SELECT a.comparison_id, a.labeler_id,
               CASE a.answer WHEN 'first' THEN 1 ELSE 0 END AS first,
               CASE a.answer WHEN 'equal' THEN 1 ELSE 0 END AS equal,
               CASE a.answer WHEN 'second' THEN 1 ELSE 0 END AS second
        FROM feedback_comparison c
        JOIN feedback_label a ON a.comparison_id = c.id
        LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE c.experiment_id = %s AND u.id IS NULL AND a.status = 'counted'
          AND a.answer IN ('first', 'equal', 'second'))"""
# Number of comparisons for each combination of vote counts.
_UNITS = f"""
    WITH {_VOTES},
         units AS (
            SELECT SUM(first) AS first, SUM(equal) AS equal, SUM(second) AS second
            FROM votes GROUP BY comparison_id)
    SELECT first, equal, second, COUNT(*) FROM units GROUP BY first, equal, second"""  # noqa: S608 (only the text above is inserted)
# Per labeler: number of votes that match the most common vote of the comparison's other labelers, and number
# of votes for which there is a single most common one.
_CONSENSUS = f"""
    WITH {_VOTES},
         others AS (
            SELECT labeler_id, first, equal, second,
                   SUM(first) OVER pair - first AS other_first, SUM(equal) OVER pair - equal AS other_equal,
                   SUM(second) OVER pair - second AS other_second
            FROM votes WINDOW pair AS (PARTITION BY comparison_id)),
         judged AS (
            SELECT labeler_id, first, equal, second,
                   other_first > other_equal AND other_first > other_second AS mostly_first,
                   other_equal > other_first AND other_equal > other_second AS mostly_equal,
                   other_second > other_first AND other_second > other_equal AS mostly_second
            FROM others)
    SELECT labeler_id,
           SUM(CASE WHEN first = 1 AND mostly_first OR equal = 1 AND mostly_equal
                         OR second = 1 AND mostly_second THEN 1 ELSE 0 END),
           COUNT(*)
    FROM judged WHERE mostly_first OR mostly_equal OR mostly_second
    GROUP BY labeler_id"""  # noqa: S608


def _rows(statement: str, experiment: Experiment) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [experiment.pk])
        found: list[tuple[int, ...]] = cursor.fetchall()
    return found

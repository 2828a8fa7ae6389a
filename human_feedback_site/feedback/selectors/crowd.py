"""Reads: how the labelers of an experiment do, each and together.

Each number is one statement over the experiment's labels, counted by the database; what comes back is a row
for each labeler. Withdrawn and void answers are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.quality.agreement import Rate, krippendorff_alpha
from human_feedback_site.feedback.queue.sql import rows
from human_feedback_site.feedback.selectors.experiments import notice_for

_NONE = Rate(0, 0)


@dataclass(frozen=True)
class Agreement:
    """Krippendorff's alpha of the labels that count, over ``pairs`` that were judged more than once.

    ``alpha`` is None where there is none, or where all say the same of all.
    """

    alpha: float | None
    pairs: int


@dataclass(frozen=True)
class LabelerQuality:
    """How a labeler does.

    Attributes:
        answers: that stand.
        gold: right ones of those to pairs whose answer is known.
        consensus: those that say what most others say of the same pair; pairs without a majority of others,
            and ``cant_tell``, are not counted.
        left: ``left`` of ``left`` and ``right``: far from a half, it is a habit.
        consistency: repeats that were answered as before.
        seconds: the median of the time from both clips playing to the answer.
        notice: ``warned``, ``stopped``, or None.
        confusion: how often each answer (first, equal, second) is given to each truth, as last estimated.
    """

    labeler: int
    name: str
    answers: int
    gold: Rate
    consensus: Rate
    left: Rate
    consistency: Rate
    seconds: float | None
    notice: str | None
    confusion: Sequence[Sequence[float]] | None


# ``said`` is empty for cant_tell.
_SAID = """
    said AS (
        SELECT a.id, a.comparison_id, a.labeler_id, a.status, a.choice, a.response_ms, c.gold,
               CASE WHEN a.choice = 'cant_tell' THEN NULL
                    WHEN a.choice = 'equal' THEN 'equal'
                    WHEN (a.choice = 'left') <> a.swapped THEN 'first'
                    ELSE 'second' END AS outcome
        FROM feedback_comparison c
        JOIN feedback_label a ON a.comparison_id = c.id
        LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE c.experiment_id = %s AND u.id IS NULL AND a.status <> 'void')"""
_VOTES = """
    votes AS (
        SELECT comparison_id, labeler_id, CASE WHEN outcome = 'first' THEN 1 ELSE 0 END AS f,
               CASE WHEN outcome = 'equal' THEN 1 ELSE 0 END AS e,
               CASE WHEN outcome = 'second' THEN 1 ELSE 0 END AS s
        FROM said WHERE status = 'counted' AND outcome IS NOT NULL)"""


def agreement(experiment: Experiment) -> Agreement:
    """Return how far labelers agree."""
    found = rows(
        f"""
        WITH {_SAID}, {_VOTES},
             units AS (SELECT SUM(f) AS f, SUM(e) AS e, SUM(s) AS s FROM votes GROUP BY comparison_id)
        SELECT f, e, s, COUNT(*) FROM units GROUP BY f, e, s""",  # noqa: S608 (parts written above)
        [experiment.pk],
    )
    units: dict[Sequence[int], int] = {(int(f), int(e), int(s)): int(number) for f, e, s, number in found}
    pairs = sum(number for counts, number in units.items() if sum(counts) > 1)
    return Agreement(krippendorff_alpha(units), pairs)


def labelers(experiment: Experiment) -> list[LabelerQuality]:
    """Return how each labeler of an experiment does who ever asked for work, by name."""
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
            notice=notice_for(each),
            confusion=each.confusion,
        )
        for each in taking_part
    ]


def _rates(statement: str, experiment: Experiment) -> Mapping[int, Rate]:
    """``statement`` gives labeler, hits and total."""
    found = rows(statement, [experiment.pk])
    return {labeler: Rate(int(hits), int(total)) for labeler, hits, total in found}


def _gold(experiment: Experiment) -> Mapping[int, Rate]:
    return _rates(
        f"""
        WITH {_SAID}
        SELECT labeler_id, SUM(CASE WHEN outcome = gold THEN 1 ELSE 0 END), COUNT(*)
        FROM said WHERE status = 'gold' AND gold IS NOT NULL GROUP BY labeler_id""",  # noqa: S608
        experiment,
    )


def _consensus(experiment: Experiment) -> Mapping[int, Rate]:
    return _rates(
        f"""
        WITH {_SAID}, {_VOTES},
             others AS (
                SELECT labeler_id, f, e, s, SUM(f) OVER pair - f AS ofirst, SUM(e) OVER pair - e AS oe,
                       SUM(s) OVER pair - s AS os
                FROM votes WINDOW pair AS (PARTITION BY comparison_id))
        SELECT labeler_id,
               SUM(CASE WHEN f = 1 AND ofirst > oe AND ofirst > os OR e = 1 AND oe > ofirst AND oe > os
                             OR s = 1 AND os > ofirst AND os > oe THEN 1 ELSE 0 END),
               COUNT(*)
        FROM others
        WHERE ofirst > oe AND ofirst > os OR oe > ofirst AND oe > os OR os > ofirst AND os > oe
        GROUP BY labeler_id""",  # noqa: S608
        experiment,
    )


def _left(experiment: Experiment) -> Mapping[int, Rate]:
    return _rates(
        f"""
        WITH {_SAID}
        SELECT labeler_id, SUM(CASE WHEN choice = 'left' THEN 1 ELSE 0 END), COUNT(*)
        FROM said WHERE choice IN ('left', 'right') GROUP BY labeler_id""",  # noqa: S608
        experiment,
    )


def _consistency(experiment: Experiment) -> Mapping[int, Rate]:
    return _rates(
        f"""
        WITH {_SAID}
        SELECT again.labeler_id,
               SUM(CASE WHEN COALESCE(again.outcome, '') = COALESCE(before.outcome, '') THEN 1 ELSE 0 END),
               COUNT(*)
        FROM said again
        JOIN said before ON before.comparison_id = again.comparison_id
             AND before.labeler_id = again.labeler_id AND before.status = 'counted'
        WHERE again.status = 'repeat' GROUP BY again.labeler_id""",  # noqa: S608
        experiment,
    )


def _seconds(experiment: Experiment) -> Mapping[int, float]:
    found = rows(
        f"""
        WITH {_SAID},
             ordered AS (
                SELECT labeler_id, response_ms, COUNT(*) OVER (PARTITION BY labeler_id) AS n,
                       ROW_NUMBER() OVER (PARTITION BY labeler_id ORDER BY response_ms) AS place
                FROM said WHERE response_ms IS NOT NULL)
        SELECT labeler_id, AVG(response_ms) FROM ordered WHERE place IN ((n + 1) / 2, (n + 2) / 2)
        GROUP BY labeler_id""",  # noqa: S608
        [experiment.pk],
    )
    return {labeler: float(ms) / 1000 for labeler, ms in found}

"""Hand-written SQL for agreement statistics, valid on both PostgreSQL and SQLite.

The queries aggregate the results of other aggregates and window functions, which Django's ORM can't express.
The alternative would be to count every label in Python, and there may be millions.
"""

from collections.abc import Sequence

from django.db import connection

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
    SELECT first, equal, second, COUNT(*) FROM units GROUP BY first, equal, second"""
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
    GROUP BY labeler_id"""


def count_units(experiment: int) -> dict[Sequence[int], int]:
    """Return the number of comparisons for each combination of ``(first, equal, second)`` vote counts."""
    return {
        (int(first), int(equal), int(second)): int(number)
        for first, equal, second, number in _rows(_UNITS, experiment)
    }


def count_consensus(experiment: int) -> dict[int, tuple[int, int]]:
    """Return ``(number of matching votes, number of comparable votes)``, keyed by labeler ID.

    A vote is comparable if the other labelers' votes on the comparison have a unique plurality winner. A
    vote matches if it equals that winner.
    """
    return {labeler: (int(hits), int(total)) for labeler, hits, total in _rows(_CONSENSUS, experiment)}


def _rows(statement: str, experiment: int) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [experiment])
        found: list[tuple[int, ...]] = cursor.fetchall()
    return found

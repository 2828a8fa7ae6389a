"""The statements about how far labelers agree that are written by hand; both databases understand them.

They count what a window or a group of labels says in groups of its own, which Django's ORM cannot express.
Otherwise a row for each label, of which there may be millions, would have to be counted in Python.
"""

from collections.abc import Sequence

from django.db import connection

# One row for each label that counts and names an outcome.
_VOTES = """
    votes AS (
        SELECT a.comparison_id, a.labeler_id,
               CASE WHEN a.choice <> 'equal' AND (a.choice = 'left') <> a.swapped THEN 1 ELSE 0 END AS first,
               CASE WHEN a.choice = 'equal' THEN 1 ELSE 0 END AS equal,
               CASE WHEN a.choice <> 'equal' AND (a.choice = 'left') = a.swapped THEN 1 ELSE 0 END AS second
        FROM feedback_comparison c
        JOIN feedback_label a ON a.comparison_id = c.id
        LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE c.experiment_id = %s AND u.id IS NULL AND a.status = 'counted' AND a.choice <> 'cant_tell')"""
# How many comparisons have so many votes for each outcome.
_UNITS = f"""
    WITH {_VOTES},
         units AS (
            SELECT SUM(first) AS first, SUM(equal) AS equal, SUM(second) AS second
            FROM votes GROUP BY comparison_id)
    SELECT first, equal, second, COUNT(*) FROM units GROUP BY first, equal, second"""
# Of each labeler: votes that say what most others say of the same pair, and votes of which most others agree.
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
    """Count the comparisons of an experiment by how many votes each outcome (first, equal, second) has."""
    return {
        (int(first), int(equal), int(second)): int(number)
        for first, equal, second, number in _rows(_UNITS, experiment)
    }


def count_consensus(experiment: int) -> dict[int, tuple[int, int]]:
    """Count, for each labeler, votes that most others share, and votes about which most others agree."""
    return {labeler: (int(hits), int(total)) for labeler, hits, total in _rows(_CONSENSUS, experiment)}


def _rows(statement: str, experiment: int) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [experiment])
        found: list[tuple[int, ...]] = cursor.fetchall()
    return found

"""What the statements that are written out by hand have in common.

Every answer and every request for work runs a handful of statements. Written out they are as few as they can
be, and cost no time to put together; both databases understand them, except for the words below.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection

_WORDS = {
    "postgresql": {
        "now": "STATEMENT_TIMESTAMP()",
        "after": "STATEMENT_TIMESTAMP() + CAST(%s AS interval)",
        "age_ms": "CAST(1000 * EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP() - l.created_at) AS bigint)",
        "lock": "FOR NO KEY UPDATE OF c SKIP LOCKED",
        "wait_and_lock": "FOR NO KEY UPDATE OF c",
        "false": "FALSE",
    },
    "sqlite": {
        "now": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')",
        "after": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', %s)",
        "age_ms": "CAST(ROUND(86400000 * (JULIANDAY('NOW') - JULIANDAY(l.created_at))) AS integer)",
        "lock": "",  # every transaction is alone
        "wait_and_lock": "",
        "false": "0",
    },
}
# Parts of statements; ``c`` is a comparison, ``l`` a lease. They count instead of asking if there is one,
# because PostgreSQL turns EXISTS into joins, and then may read all that a labeler ever did.
_PARTS = {
    # An answer under an older lease of the same pair ends this one too, unless it is void.
    "unanswered": """0 = (
        SELECT COUNT(*) FROM feedback_label a
        WHERE a.comparison_id = l.comparison_id AND a.labeler_id = l.labeler_id
          AND (a.lease_id = l.id OR a.created_at >= l.created_at AND a.status <> 'void'))""",
    "live": "l.expires_at > {now} AND {unanswered}",
    "still_asked": """CASE l.purpose WHEN 'judge' THEN c.status = 'open' WHEN 'gold' THEN c.status = 'gold'
        ELSE c.status <> 'cancelled' END""",
    "judged_by": """0 < (
        SELECT COUNT(*) FROM feedback_label a LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE a.comparison_id = c.id AND a.labeler_id = %s AND u.id IS NULL
          AND a.status IN ('counted', 'surplus'))""",
    "held_by": """0 < (
        SELECT COUNT(*) FROM feedback_lease l
        WHERE l.comparison_id = c.id AND l.labeler_id = %s AND {live})""",
    "places_taken": """(
        SELECT COUNT(*) FROM feedback_lease l
        WHERE l.comparison_id = c.id AND l.purpose = 'judge' AND {live})""",
    # A label ``a`` that takes the next free place of ``c``: the first of its labeler that waits.
    "eligible": """a.status = 'surplus'
        AND 0 = (SELECT COUNT(*) FROM feedback_undo u WHERE u.label_id = a.id)
        AND 0 = (
            SELECT COUNT(*) FROM feedback_label b LEFT JOIN feedback_undo v ON v.label_id = b.id
            WHERE b.comparison_id = a.comparison_id AND b.labeler_id = a.labeler_id AND v.id IS NULL
              AND (b.status = 'counted' OR b.status = 'surplus' AND b.id < a.id))
        AND 0 = (
            SELECT COUNT(*) FROM feedback_participation w
            WHERE w.labeler_id = a.labeler_id AND w.experiment_id = c.experiment_id
              AND w.stopped_at IS NOT NULL)""",
    "waiting": "(SELECT COUNT(*) FROM feedback_label a WHERE a.comparison_id = c.id AND {eligible})",
    # Labels that wait go first. They are rare, so they are counted only where there seems to be room.
    "is_free": """c.n_labels + {places_taken} < c.wanted
        AND (0 = {waiting} OR c.n_labels + {places_taken} + {waiting} < c.wanted)""",
    # An expired lease may be brought back; only one to judge needs a place.
    "has_place": """{still_asked} AND (l.purpose <> 'judge'
        OR {is_free} AND NOT {judged_by} AND NOT {held_by})""",
    "pair": "c.id AS comparison, c.uuid AS pair, c.first_key, c.second_key",
    # In the place of a lease, where one statement finds leases and pairs.
    "no_lease": """CAST(NULL AS bigint) AS lease, CAST(NULL AS uuid) AS uuid, {false} AS swapped,
        {false} AS shown""",
}


def rows(text: str, values: Sequence[Any], **parts: str) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows; ``{words}`` and ``{parts}`` are written for the database.

    ``parts`` are those of this call alone, such as a limit: without it PostgreSQL would plan for many rows.
    """
    with connection.cursor() as cursor:
        cursor.execute(_written(text, connection.vendor, **parts), values)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def run(text: str, values: Sequence[Any]) -> None:
    """Run a statement that returns no rows, written as for :func:`rows`."""
    with connection.cursor() as cursor:
        cursor.execute(_written(text, connection.vendor), values)


def first_rows(text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """As :func:`rows`, for the statement that a request begins with, which only reads.

    It is itself the trial that a connection kept from earlier requests is put to: where the server has closed
    that, the statement is run again on a new one.
    """
    connection.health_check_done = True  # type: ignore[attr-defined]
    try:
        return rows(text, values)
    except (OperationalError, InterfaceError):
        if connection.connection is None or connection.is_usable():
            raise
        connection.close()
        return rows(text, values)


@cache
def _written(text: str, vendor: str, **parts: str) -> str:
    while "{" in text:  # parts are made of parts, and those of words
        text = text.format(**_WORDS[vendor], **_PARTS, **parts)
    return text


def key(uuid: UUID) -> Any:
    """Return a UUID as the database in use keeps it."""
    return uuid if connection.features.has_native_uuid_field else uuid.hex


def uuid_of(value: Any) -> UUID:
    """Return the UUID that a statement returned."""
    return value if isinstance(value, UUID) else UUID(value)


def seconds(count: float) -> str:
    """Return a length of time for ``{after}``."""
    return f"{count:+f} seconds"

"""The queue's hand-written SQL for PostgreSQL and SQLite: eight reads and one counter update.

Every request for work and every answer starts with some of these reads. Of the web server's 13 ms of CPU time
per label, each query built with Django's ORM takes up to 1 ms. All other statements use the ORM. The counter
update is here because the ORM has no UPDATE ... RETURNING. A single statement keeps the wait short: the
counter's row stays locked until the commit, and all other answers wait for it.

The condition ``free`` says when a slot is free for a labeler. Both the search and the check under the lock
use it. A lease takes a slot until ``expires_at``, which an answer sets to the current time.

Table aliases: ``c`` comparison, ``e`` experiment, ``l`` lease, ``a`` label, ``b`` labeler, ``y`` user.
The queries use COUNT instead of EXISTS, because PostgreSQL turns EXISTS into joins and may then read
all rows of a labeler.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection

from human_feedback_site.feedback.kinds import ITEMS
from human_feedback_site.feedback.models import Comparison, Lease, Participation

AT_WORK_SECONDS = 300
"""For how long after a model's last request people don't get the questions that are left to it."""
Row = dict[str, Any]
"""A result row, keyed by column name."""


@dataclass(frozen=True)
class Shares:
    """Shares of the comparisons that models may decide without people.

    Attributes:
        own: that of the model which asks; None for people.
        of_models: that of a model at work; None if there is none.
    """

    own: float | None
    of_models: float | None


@dataclass(frozen=True)
class Statements:
    """The queue's SQL statements for one database."""

    session: str  # data of an unexpired session. Parameters: session key
    # a user's state in an experiment. Parameters: duration for which a model counts as at work (as in
    # ``-10 seconds``), user ID, experiment name
    participant: str
    # a lease with its comparison, experiment and labeler, and the data of a session. Parameters: session key,
    # lease UUID
    answered_lease: str
    # a labeler's unanswered leases that remain live for at least a given duration. Parameters: labeler ID,
    # experiment ID, duration (such as ``+10 seconds``)
    leases_held: str
    # comparisons with a free slot for a labeler, in judging order. Parameters: experiment ID, labeler ID,
    # labeler ID, kinds
    find_free: str
    # the same for a model, or for people while one is at work. Parameters: those of ``find_free``, and twice
    # the share of comparisons that the model may decide
    find_free_for_model: str
    find_free_beside_model: str
    lock: str  # locking clause to append to ``find_free``; skips rows locked by other transactions
    # which of some comparisons have a free slot for a labeler. Parameters: comparison IDs, labeler ID,
    # labeler ID
    still_free: str
    lock_comparison: str  # Parameters: comparison ID
    # locks and returns a labeler's participation, with the number of their judgments of a comparison that is
    # already locked. Parameters: comparison ID, labeler ID, labeler ID, experiment ID
    lock_participation: str


_RAISE_COUNTER = """
    UPDATE feedback_sequencecounter SET last_seq = last_seq + %s WHERE experiment_id = %s
    RETURNING last_seq"""
_USER = "y.id AS user_id, y.username, y.password, y.is_active, y.is_staff"
_PARTICIPANT = f"""
    SELECT {_USER}, p.id AS participation, b.id AS labeler, e.id AS experiment, e.state, e.prompt,
           e.prompt_version, e.fps, e.compares_kinds, e.waiting_for, e.gold_rate, e.repeat_rate,
           p.answers - p.undone AS judged, p.answers - p.undone - COALESCE(p.elsewhere, 0) AS answered,
           v.answers_wanted AS wanted, v.id AS invite, p.empty_since IS NOT NULL AS empty,
           e.consent_id IS NULL OR e.consent_id = p.consented_to_id AS consented,
           CASE WHEN b.kind = 'model' THEN p.share END AS share,
           CASE WHEN e.models_seen_at > {{later}} THEN e.models_share END AS models_share,
           p.gold_checks, p.watch_checks, p.stopped_at IS NOT NULL AS is_stopped, e.warn_failures
    FROM feedback_experiment e
    JOIN feedback_labeler b ON b.user_id = %s
    JOIN feedback_labeler_experiments i ON i.labeler_id = b.id AND i.experiment_id = e.id
    JOIN feedback_participation p ON p.labeler_id = b.id AND p.experiment_id = e.id
    JOIN auth_user y ON y.id = b.user_id
    LEFT JOIN feedback_invite v ON v.id = p.invite_id
    WHERE e.name = %s AND e.deletion_asked_at IS NULL"""


def _statements(now: str, later: str, age_ms: str, lock: str, ids: str, kinds: str) -> Statements:
    session = f"""
        SELECT s.session_data FROM django_session s WHERE s.session_key = %s AND s.expire_date > {now}"""
    answered_lease = f"""
        SELECT {_USER}, ({session}) AS session_data, l.id AS pk, l.uuid, l.labeler_id AS labeler,
               l.purpose, l.swapped, l.prompt_version, l.invite_id AS invite, {age_ms} AS age_ms,
               b.kind = 'model' AS is_model,
               c.id AS comparison, c.kind, c.gold, e.id AS experiment, e.min_watch_ms, e.stop_failures,
               e.aggregation, e.overlap, e.overlap_share, e.overlap_more, e.class_prior
        FROM feedback_lease l
        JOIN feedback_comparison c ON c.id = l.comparison_id
        JOIN feedback_experiment e ON e.id = c.experiment_id AND e.deletion_asked_at IS NULL
        JOIN feedback_labeler b ON b.id = l.labeler_id
        JOIN auth_user y ON y.id = b.user_id
        WHERE l.uuid = %s"""
    clips = "c.kind, c.first_key, c.second_key, c.third_key, c.fourth_key"
    # A process of 0.1.0 leaves the expiry of the leases that it answers as it is.
    leases_held = f"""
        SELECT l.*, c.uuid AS question_uuid, {clips}
        FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
        WHERE l.labeler_id = %s AND c.experiment_id = %s AND l.expires_at > {later}
          AND 0 = (SELECT COUNT(*) FROM feedback_label a WHERE a.lease_id = l.id)
          AND CASE l.purpose WHEN 'judge' THEN c.status = 'open' WHEN 'gold' THEN c.status = 'gold'
              ELSE c.status <> 'cancelled' END"""
    live = f"""
        SELECT COUNT(*) FROM feedback_lease l WHERE l.comparison_id = c.id AND l.expires_at > {now}"""
    judged = """
        SELECT COUNT(*) FROM feedback_label a LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE a.comparison_id = c.id AND a.labeler_id = %s AND u.id IS NULL
          AND a.status IN ('counted', 'surplus')"""
    free = f"""c.status = 'open' AND c.n_labels + ({live} AND l.purpose = 'judge') < c.wanted
          AND 0 = ({live} AND l.labeler_id = %s) AND 0 = ({judged})"""
    find_free = f"""
        SELECT c.id, c.uuid, {clips}
        FROM feedback_comparison c WHERE c.experiment_id = %s AND {free} AND c.kind {kinds}"""
    by_people = """
        SELECT COUNT(*) FROM feedback_label a JOIN feedback_labeler b ON b.id = a.labeler_id
        LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE a.comparison_id = c.id AND a.status = 'counted' AND u.id IS NULL AND b.kind <> 'model'"""
    share = "CAST(%s AS double precision)"
    by_models = by_people.replace("<>", "=").replace("a.status = 'counted'", "a.status <> 'void'")
    left = f"({share} >= 1 OR (NOT c.disputed AND c.id * 7919 %% 1009 < 1009 * {share}))"
    order = " ORDER BY c.priority DESC, c.n_labels DESC, c.id DESC"
    still_free = f"SELECT c.id FROM feedback_comparison c WHERE c.id {ids} AND {free}"
    lock_comparison = f"SELECT * FROM feedback_comparison WHERE id = %s {lock}"
    lock_participation = f"""
        SELECT p.*, ({judged.replace("c.id", "%s")}) AS judged FROM feedback_participation p
        WHERE p.labeler_id = %s AND p.experiment_id = %s {lock}"""
    return Statements(
        session=session,
        participant=_PARTICIPANT.format(later=later),
        answered_lease=answered_lease,
        leases_held=leases_held,
        find_free=find_free + order,
        find_free_for_model=f"{find_free} AND (0 < ({by_people}) OR {left}) {order}",
        find_free_beside_model=f"{find_free} AND (0 < ({by_models}) OR NOT {left}) {order}",
        lock=f"{lock} SKIP LOCKED" if lock else "",
        still_free=still_free,
        lock_comparison=lock_comparison,
        lock_participation=lock_participation,
    )


POSTGRESQL = _statements(
    now="STATEMENT_TIMESTAMP()",
    later="STATEMENT_TIMESTAMP() + CAST(%s AS interval)",
    age_ms="CAST(1000 * EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP() - l.created_at) AS bigint)",
    lock="FOR NO KEY UPDATE",
    ids="= ANY(CAST(%s AS bigint[]))",
    kinds="= ANY(CAST(%s AS text[]))",
)
SQLITE = _statements(
    now="STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')",
    later="STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', %s)",
    age_ms="CAST(ROUND(86400000 * (JULIANDAY('NOW') - JULIANDAY(l.created_at))) AS integer)",
    lock="",  # SQLite runs one transaction at a time
    ids="IN (SELECT value FROM json_each(%s))",
    kinds="IN (SELECT value FROM json_each(%s))",
)


def session_data(session_key: str) -> str | None:
    """Return the encoded session data, or None if the session doesn't exist or has expired."""
    found = _first_rows(_database_statements().session, session_key)
    return str(found[0]["session_data"]) if found else None


def participant_row(user: int, experiment: str) -> Row | None:
    """Return a user's columns and state in an experiment; None if not invited, or it wasn't opened yet."""
    found = _rows(_database_statements().participant, f"-{AT_WORK_SECONDS} seconds", user, experiment)
    return found[0] if found else None


def answered_lease_row(uuid: UUID, session_key: str) -> Row | None:
    """Return the lease, its user's columns, and the session's data if it is valid."""
    found = _first_rows(_database_statements().answered_lease, session_key, _key(uuid))
    return found[0] if found else None


def leases_held(labeler: int, experiment: int, seconds: float) -> list[Lease]:
    """Return the labeler's unanswered leases that don't expire within the next ``seconds``.

    Leases on comparisons that can no longer be answered are left out. Each lease's ``comparison`` has only
    its ID, UUID, kind and clip keys; its other fields have default values.
    """
    values = [labeler, experiment, f"{seconds:+f} seconds"]
    leases: list[Any] = list(Lease.objects.raw(_database_statements().leases_held, values))
    for lease in leases:
        keys = {f"{item}_key": getattr(lease, f"{item}_key") for item in ITEMS}
        lease.comparison = Comparison(
            pk=lease.comparison_id, uuid=uuid_of(lease.question_uuid), kind=lease.kind, **keys
        )
    return leases


def lock_free(
    experiment: int, labeler: int, most: int, kinds: Sequence[str], shares: Shares
) -> list[Comparison]:
    """Find and lock up to ``most`` comparisons of some kinds with a free slot for a labeler, in order.

    A model gets those that a person has answered, and those that are left to it. While one is at work, people
    get the latter only after it has answered, unless it may decide everything.
    Comparisons that other requests have locked are skipped. A slot may have been taken just before the lock
    was acquired, so call :func:`still_free` afterwards. Only IDs, UUIDs, kinds and clip keys are read.
    """
    statements = _database_statements()
    # LIMIT is not a parameter: PostgreSQL would plan for many rows.
    statement, share = statements.find_free, None
    if shares.own is not None:
        statement, share = statements.find_free_for_model, shares.own
    elif shares.of_models is not None and shares.of_models < 1:
        statement, share = statements.find_free_beside_model, shares.of_models
    text = f"{statement} LIMIT {most:d} {statements.lock}"
    values = [] if share is None else [share, share]
    found = _rows(text, experiment, labeler, labeler, _array(kinds), *values)
    return [Comparison(**{**row, "uuid": uuid_of(row["uuid"])}) for row in found]


def still_free(comparisons: Iterable[int], labeler: int) -> set[int]:
    """Return the IDs of those of some locked comparisons that have a free slot for a labeler."""
    ids = _array(comparisons)
    return {row["id"] for row in _rows(_database_statements().still_free, ids, labeler, labeler)}


def lock_comparison(comparison: int) -> Comparison:
    """Lock a comparison's row and return the comparison."""
    [found] = Comparison.objects.raw(_database_statements().lock_comparison, [comparison])
    return found


def lock_participation(labeler: int, experiment: int, comparison: int) -> tuple[Participation, bool]:
    """Lock and return a labeler's participation, and whether they have judged a locked comparison."""
    values = [comparison, labeler, labeler, experiment]
    [found] = Participation.objects.raw(_database_statements().lock_participation, values)
    return found, vars(found)["judged"] > 0


def _array(values: Iterable[object]) -> Any:
    """Convert values to an array parameter: JSON on SQLite."""
    return list(values) if connection.vendor == "postgresql" else json.dumps(list(values))


def raise_counter(experiment: int, count: int) -> int:
    """Add ``count`` to an experiment's feed counter, whose row stays locked, and return the new value."""
    [row] = _rows(_RAISE_COUNTER, count, experiment)
    return int(row["last_seq"])


def wait_for_turn(participation: int) -> None:
    """Wait for the labeler's other lease requests to end, using a PostgreSQL advisory lock.

    This must be its own SQL statement: the statement after it takes a new snapshot, and so sees the leases
    granted to the previous request. A request that waits here holds no other lock, so there can be no
    deadlock. Answers and undos don't need the lock: they convert a lease to an answer or vice versa, and the
    invitation's limit applies to answers and leases together.

    Locking the participation's row instead could deadlock, because answers lock it after the comparison's
    row. It would also write to disk each time a labeler finds the queue empty.
    """
    if connection.vendor == "postgresql":  # SQLite runs one transaction at a time
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(CAST(%s AS bigint))", [participation])


def user_of(row: Row) -> User:
    """Build a user from the columns of the table of users in a row."""
    return User(
        pk=row["user_id"],
        username=row["username"],
        password=row["password"],
        is_active=bool(row["is_active"]),
        is_staff=bool(row["is_staff"]),
    )


def uuid_of(value: Any) -> UUID:
    """Convert a UUID column to ``UUID``; SQLite returns it as text."""
    return value if isinstance(value, UUID) else UUID(value)


def _key(uuid: UUID) -> Any:
    """Convert a UUID to the form that the database stores: text on SQLite."""
    return uuid if connection.features.has_native_uuid_field else uuid.hex


def _database_statements() -> Statements:
    return POSTGRESQL if connection.vendor == "postgresql" else SQLITE


def _first_rows(statement: str, *values: Any) -> list[Row]:
    """Run the first query of a request, reconnecting to the database once if necessary.

    This replaces Django's health check of persistent connections: if the server has closed the connection,
    the statement runs again on a new one.
    """
    connection.health_check_done = True  # type: ignore[attr-defined]
    try:
        return _rows(statement, *values)
    except (OperationalError, InterfaceError):
        if connection.connection is None or connection.is_usable():
            raise
        connection.close()
        return _rows(statement, *values)


def _rows(statement: str, *values: Any) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

"""The statements of the queue that are written by hand, for each database: six reads, and a counter.

Every request for work and every answer begins with some of the reads. For one label, the web server needs
4 ms of processor time in all; had Django's ORM to put these together anew each time, it would need 5 ms more
for the search of the queue, 5 ms for counting places (twice for each label), and 2 ms for the others. All
other statements are the ORM's. The counter is raised by hand because the ORM has no UPDATE ... RETURNING: its
row is locked until the commit, and everybody who answers waits for it.

In all, ``c`` is a comparison, ``e`` an experiment, ``l`` a lease, ``a`` a label, ``b`` a labeler, ``y`` a
user. They count instead of asking whether there is a row, because PostgreSQL turns EXISTS into joins, and
then may read all that a labeler ever did.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection

from human_feedback_site.feedback.models import Comparison, Lease

Row = tuple[Any, ...]
USER_COLUMNS = 5


@dataclass(frozen=True)
class Statements:
    """The statements in the words of one database.

    Attributes:
        session: what is kept of a session that has not expired. Parameters: its key.
        participant: a user who asks an experiment for work. Parameters: user, name of the experiment.
        answered_lease: a lease, its pair, its experiment and its labeler, and the session of a key.
            Parameters: key of the session, UUID of the lease.
        leases_held: unanswered leases of a labeler that last for a while. Parameters: labeler,
            experiment, how long.
        find_free: comparisons of an experiment that have a free place for a labeler, in the order in which
            they should be judged. Parameters: experiment, labeler, labeler.
        lock: ends ``find_free``: lock what is found, and pass over what others have locked.
        count_places: who has, and who waits for, the places of comparisons. Parameters: the
            labeler three times, ids of comparisons.
    """

    session: str
    participant: str
    answered_lease: str
    leases_held: str
    find_free: str
    lock: str
    count_places: str


_RAISE_COUNTER = """
    UPDATE feedback_sequencecounter SET last_seq = last_seq + %s WHERE experiment_id = %s
    RETURNING last_seq"""
_USER = "y.id, y.username, y.password, y.is_active, y.is_staff"
_PARTICIPANT = f"""
    SELECT {_USER}, p.id, b.id, e.id, e.state, e.prompt, e.prompt_version, e.fps, e.waiting_for,
           e.gold_rate, e.repeat_rate, p.answers - p.undone,
           p.answers - p.undone - COALESCE(p.elsewhere, 0), v.answers_wanted, v.id,
           p.empty_since IS NOT NULL, e.consent_id IS NULL OR e.consent_id = p.consented_to_id,
           p.gold_checks, p.watch_checks, p.stopped_at IS NOT NULL, e.warn_failures
    FROM feedback_experiment e
    JOIN feedback_labeler b ON b.user_id = %s
    JOIN feedback_labeler_experiments i ON i.labeler_id = b.id AND i.experiment_id = e.id
    JOIN feedback_participation p ON p.labeler_id = b.id AND p.experiment_id = e.id
    JOIN auth_user y ON y.id = b.user_id
    LEFT JOIN feedback_invite v ON v.id = p.invite_id
    WHERE e.name = %s AND e.deletion_asked_at IS NULL"""


def _statements(now: str, later: str, age_ms: str, lock: str, ids: str) -> Statements:
    unanswered = """0 = (
        SELECT COUNT(*) FROM feedback_label a
        WHERE a.comparison_id = l.comparison_id AND a.labeler_id = l.labeler_id
          AND (a.lease_id = l.id OR a.created_at >= l.created_at AND a.status <> 'void'))"""
    live = f"l.expires_at > {now} AND {unanswered}"
    session = f"""
        SELECT s.session_data FROM django_session s WHERE s.session_key = %s AND s.expire_date > {now}"""
    answered_lease = f"""
        SELECT {_USER}, ({session}), l.id, l.uuid, l.labeler_id, l.purpose, l.swapped, l.prompt_version,
               l.invite_id, {age_ms}, c.id, c.gold, e.id, e.min_watch_ms, e.stop_failures,
               e.aggregation, e.overlap, e.overlap_share, e.overlap_more, e.class_prior
        FROM feedback_lease l
        JOIN feedback_comparison c ON c.id = l.comparison_id
        JOIN feedback_experiment e ON e.id = c.experiment_id AND e.deletion_asked_at IS NULL
        JOIN feedback_labeler b ON b.id = l.labeler_id
        JOIN auth_user y ON y.id = b.user_id
        WHERE l.uuid = %s"""
    leases_held = f"""
        SELECT l.*, c.uuid AS pair_uuid, c.first_key, c.second_key
        FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
        WHERE l.labeler_id = %s AND c.experiment_id = %s AND l.expires_at > {later} AND {unanswered}
          AND CASE l.purpose WHEN 'judge' THEN c.status = 'open' WHEN 'gold' THEN c.status = 'gold'
              ELSE c.status <> 'cancelled' END"""
    taken = f"""(
        SELECT COUNT(*) FROM feedback_lease l
        WHERE l.comparison_id = c.id AND l.purpose = 'judge' AND {live})"""
    held = f"""(
        SELECT COUNT(*) FROM feedback_lease l
        WHERE l.comparison_id = c.id AND l.labeler_id = %s AND {live})"""
    held_to_judge = f"""(
        SELECT COUNT(*) FROM feedback_lease l
        WHERE l.comparison_id = c.id AND l.labeler_id = %s AND l.purpose = 'judge' AND {live})"""
    judged = """(
        SELECT COUNT(*) FROM feedback_label a LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE a.comparison_id = c.id AND a.labeler_id = %s AND u.id IS NULL
          AND a.status IN ('counted', 'surplus'))"""
    # As waiting_labels() of models.querysets.
    waiting = """(
        SELECT COUNT(*) FROM feedback_label a
        WHERE a.comparison_id = c.id AND a.status = 'surplus'
          AND 0 = (SELECT COUNT(*) FROM feedback_undo u WHERE u.label_id = a.id)
          AND 0 = (
            SELECT COUNT(*) FROM feedback_label b LEFT JOIN feedback_undo v ON v.label_id = b.id
            WHERE b.comparison_id = a.comparison_id AND b.labeler_id = a.labeler_id AND v.id IS NULL
              AND (b.status = 'counted' OR b.status = 'surplus' AND b.id < a.id))
          AND 0 = (
            SELECT COUNT(*) FROM feedback_participation w
            WHERE w.labeler_id = a.labeler_id AND w.experiment_id = c.experiment_id
              AND w.stopped_at IS NOT NULL))"""
    # Labels that wait go first. They are rare, so they are counted only where there seems to be room.
    find_free = f"""
        SELECT c.id, c.uuid, c.status, c.wanted, c.n_labels, c.first_key, c.second_key
        FROM feedback_comparison c
        WHERE c.experiment_id = %s AND c.status = 'open' AND c.n_labels + {taken} < c.wanted
          AND c.n_labels + {taken} + {waiting} < c.wanted AND 0 = {judged} AND 0 = {held}
        ORDER BY c.priority DESC, c.n_labels DESC, c.id DESC"""
    count_places = f"""
        SELECT c.id, {taken}, {held_to_judge}, {held}, {judged}, {waiting}
        FROM feedback_comparison c WHERE c.id {ids}"""
    return Statements(session, _PARTICIPANT, answered_lease, leases_held, find_free, lock, count_places)


POSTGRESQL = _statements(
    now="STATEMENT_TIMESTAMP()",
    later="STATEMENT_TIMESTAMP() + CAST(%s AS interval)",
    age_ms="CAST(1000 * EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP() - l.created_at) AS bigint)",
    lock="FOR NO KEY UPDATE OF c SKIP LOCKED",
    ids="= ANY(CAST(%s AS bigint[]))",
)
SQLITE = _statements(
    now="STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')",
    later="STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', %s)",
    age_ms="CAST(ROUND(86400000 * (JULIANDAY('NOW') - JULIANDAY(l.created_at))) AS integer)",
    lock="",  # every transaction is alone
    ids="IN (SELECT value FROM json_each(%s))",
)


@dataclass(frozen=True)
class Places:
    """Who has, and who waits for, the places of a comparison, seen by one labeler.

    Attributes:
        taken: live leases to judge it, those of the labeler included.
        taken_by_labeler: those of the labeler.
        is_held: the labeler has a live lease of it, for whatever purpose.
        is_judged: the labeler has judged it.
        waiting: labels that wait for a place.
    """

    taken: int
    taken_by_labeler: int
    is_held: bool
    is_judged: bool
    waiting: int

    def has_free(self, comparison: Comparison) -> bool:
        """Say whether the labeler may have one of the places of this comparison, which is locked."""
        is_open = comparison.status == Comparison.Status.OPEN
        has_room = comparison.n_labels + self.taken + self.waiting < comparison.wanted
        return is_open and has_room and not self.is_judged and not self.is_held


def session_data(session_key: str) -> str | None:
    """Return what is kept of a session that has not expired."""
    found = _first_rows(_of_database().session, session_key)
    return str(found[0][0]) if found else None


def participant_row(user: int, experiment: str) -> Row | None:
    """Return a user, as :func:`user_of` takes it, and what is known of it in the experiment of that name."""
    found = _rows(_of_database().participant, user, experiment)
    return found[0] if found else None


def answered_lease_row(uuid: UUID, session_key: str) -> Row | None:
    """Return a lease's user, as :func:`user_of` takes it, the data of a session, and the lease."""
    found = _first_rows(_of_database().answered_lease, session_key, _key(uuid))
    return found[0] if found else None


def leases_held(labeler: int, experiment: int, seconds: float) -> list[Lease]:
    """Return leases of a labeler that will be live for so long, and whose pairs are still asked."""
    values = [labeler, experiment, f"{seconds:+f} seconds"]
    leases: list[Any] = list(Lease.objects.raw(_of_database().leases_held, values))
    for lease in leases:
        lease.comparison = Comparison(
            pk=lease.comparison_id,
            uuid=uuid_of(lease.pair_uuid),
            first_key=lease.first_key,
            second_key=lease.second_key,
        )
    return leases


def lock_free(experiment: int, labeler: int, most: int) -> list[Comparison]:
    """Find and lock comparisons with a free place for a labeler, in the order in which to judge them.

    Those that others look at in this moment are passed over. A place may have gone until the lock was had:
    :func:`count_places` tells, which sees what was committed until then.
    """
    statements = _of_database()
    # The limit is part of the text: otherwise PostgreSQL would plan for many rows.
    text = f"{statements.find_free} LIMIT {most:d} {statements.lock}"
    return [
        Comparison(
            pk=pk, uuid=uuid_of(uuid), status=status, wanted=wanted, n_labels=n_labels,
            first_key=first_key, second_key=second_key,
        )
        for pk, uuid, status, wanted, n_labels, first_key, second_key in _rows(
            text, experiment, labeler, labeler
        )
    ]  # fmt: skip


def count_places(comparisons: Sequence[int], labeler: int) -> dict[int, Places]:
    """Count the places of comparisons, which are locked, for a labeler; by comparison."""
    ids: Any = list(comparisons) if connection.vendor == "postgresql" else json.dumps(list(comparisons))
    found = _rows(_of_database().count_places, labeler, labeler, labeler, ids)
    return {
        comparison: Places(taken, own, bool(held), bool(judged), waiting)
        for comparison, taken, own, held, judged, waiting in found
    }


def raise_counter(experiment: int, count: int) -> int:
    """Raise the counter of an experiment's feed, which stays locked until the commit; return what it says."""
    [[last_seq]] = _rows(_RAISE_COUNTER, count, experiment)
    return int(last_seq)


def wait_for_turn(participation: int) -> None:
    """Let one request of a labeler after the other count what it holds, and take more.

    This is a statement of its own, for only the next one sees what the request before took. Whoever waits
    here holds no other lock, and nothing else takes this one, so no circle of waiting can close. Answers and
    undos need none: they make an answer of a lease or a lease of an answer, and what is counted is the sum
    of both in one moment. They lock the participation's row, but after the comparison's; taken first here,
    its lock would close such a circle, and be written to the disk for each look into an empty queue.
    """
    if connection.vendor == "postgresql":  # on SQLite every transaction is alone
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(CAST(%s AS bigint))", [participation])


def user_of(row: Row) -> User:
    """Return the user whose columns a row begins with."""
    pk, username, password, is_active, is_staff = row[:USER_COLUMNS]
    return User(
        pk=pk, username=username, password=password, is_active=bool(is_active), is_staff=bool(is_staff)
    )


def uuid_of(value: Any) -> UUID:
    """Return the UUID that a statement returned."""
    return value if isinstance(value, UUID) else UUID(value)


def _key(uuid: UUID) -> Any:
    """Return a UUID as the database in use keeps it."""
    return uuid if connection.features.has_native_uuid_field else uuid.hex


def _of_database() -> Statements:
    return POSTGRESQL if connection.vendor == "postgresql" else SQLITE


def _first_rows(statement: str, *values: Any) -> list[Row]:
    """Run the statement that a request begins with, which only reads.

    It is itself the trial that a connection kept from earlier requests is put to: where the server has closed
    that, the statement is run again on a new one.
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
        found: list[Row] = cursor.fetchall()
    return found

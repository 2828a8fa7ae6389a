"""What somebody who asks for work may keep, and what could be given: found by one statement.

It locks the pairs on which a place is to be taken. Whether there is one is certain only to the next
statement, which sees what was committed until the locks were had.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from human_feedback_site.feedback.models import Lease
from human_feedback_site.feedback.queue.checks import Check, check_pair, due_check
from human_feedback_site.feedback.queue.claims import Participant
from human_feedback_site.feedback.queue.sql import key, rows, seconds, uuid_of

# A lease this close to its end is brought back as an expired one is: it may be over before the commit.
NEARLY_OVER_SECONDS = 10.0


@dataclass(frozen=True)
class Pair:
    """A comparison as it may be leased."""

    comparison: int
    uuid: UUID
    first_key: str
    second_key: str
    purpose: str = Lease.Purpose.JUDGE

    @classmethod
    def of(cls, row: Sequence[Any], purpose: str = Lease.Purpose.JUDGE) -> "Pair":
        """Return what a statement returned as id, UUID and clips of a comparison."""
        comparison, uuid, first_key, second_key = row
        return cls(comparison, uuid_of(uuid), first_key, second_key, purpose)


@dataclass(frozen=True)
class Offer:
    """A lease as its labeler sees it: a pair, and whether the second of it is shown on the left."""

    uuid: UUID
    comparison: UUID
    first_key: str
    second_key: str
    swapped: bool

    @classmethod
    def of(cls, lease: Lease) -> "Offer":
        """Return what is offered by a lease."""
        pair = lease.comparison
        return cls(lease.uuid, pair.uuid, pair.first_key, pair.second_key, lease.swapped)


@dataclass(frozen=True)
class Found:
    """What one look found.

    Attributes:
        promised: answers of the labeler's part that stand, and live leases, in one moment.
        live: leases of the labeler by id, in the order in which they should be kept: those that its page
            holds, what is on screen, the oldest.
        expired: leases that its page holds, one for each pair, whose places nobody seems to have taken.
        asked: how many pairs were looked for.
        queue: as many at most, in the order in which they should be judged.
        check: a check that is due, and its pair.
    """

    promised: int
    live: dict[int, Offer]
    expired: dict[int, Offer]
    asked: int
    queue: Sequence[Pair]
    check: tuple[Check, Pair] | None

    @property
    def is_all(self) -> bool:
        """Whether there is no more in the queue."""
        return len(self.queue) < self.asked

    def choose(self, count: int) -> list[Pair]:
        """Return ``count`` pairs at most, a check among them where one is due.

        Where fewer are chosen than were looked for, the labeler holds pairs in the place of the first.
        """
        count = max(0, min(count, self.asked))
        queue = list(self.queue[:count])
        if self.check is not None:
            check, pair = self.check
            place = check.place - (self.asked - count)
            if place >= 0:
                return [*queue[:place], pair, *queue[place : count - 1]]
        return queue


_LIVE = """
    SELECT 'live' AS kind, l.id AS lease, l.uuid, l.swapped, l.shown, {pair}
    FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
    WHERE l.labeler_id = %s AND c.experiment_id = %s AND l.expires_at > {after}
      AND {unanswered} AND {still_asked}"""
_EXPIRED = """
    SELECT 'expired' AS kind, l.id AS lease, l.uuid, l.swapped, l.shown, {pair}
    FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
    WHERE l.labeler_id = %s AND c.experiment_id = %s AND l.expires_at <= {after} AND l.uuid IN ({held})
      AND {unanswered} AND {has_place}
    ORDER BY c.id {wait_and_lock}"""
# In the order in which they should be judged. Rows that others look at in this moment are passed over.
_QUEUE = """
    SELECT 'judge' AS kind, {no_lease}, {pair} FROM feedback_comparison c
    WHERE c.experiment_id = %s AND c.status = 'open' AND {is_free}
      AND NOT {judged_by} AND NOT {held_by} {but_held}
    ORDER BY c.priority DESC, c.n_labels DESC, c.id DESC
    LIMIT {count} {lock}"""
# Even where nothing is found, how many answers there are is.
_LOOK = """
    SELECT p.answers - p.undone - COALESCE(p.elsewhere, 0), part.*
    FROM feedback_participation p LEFT JOIN ({look}) AS part ON 1 = 1
    WHERE p.id = %s"""
# What is brought back is not to be given, too.
_BUT_HELD = "AND c.id NOT IN (SELECT h.comparison_id FROM feedback_lease h WHERE h.uuid IN ({held}))"


def look(who: Participant, held: Sequence[UUID], count: int) -> Found:
    """Look for what the labeler holds, live or not, and for ``count`` pairs more.

    Pairs of expired leases are locked first, in the order of their ids, as everybody does who waits.
    """
    soon = seconds(NEARLY_OVER_SECONDS)
    keys = [key(uuid) for uuid in held]
    asked: list[tuple[str, Sequence[Any]]] = [(_LIVE, [who.labeler, who.experiment, soon])]
    if held:
        values = [who.labeler, who.experiment, soon, *keys, who.labeler, who.labeler]
        asked.append((_EXPIRED, values))
    check = None
    if count > 0:
        asked.append((_QUEUE, [who.experiment, who.labeler, who.labeler, *keys]))
        first = who.judged + len(held)
        check = due_check(who, range(first, first + count))
        if check is not None:
            asked.append(check_pair(who, check.purpose))
    parts = ") AS part UNION ALL SELECT * FROM (".join(part for part, _ in asked)
    found = rows(
        _LOOK.replace("{look}", f"SELECT * FROM ({parts}) AS part"),  # noqa: S608  (all written in this package)
        [*(value for _, values in asked for value in values), who.participation],
        held=", ".join(["%s"] * len(held)),
        but_held=_BUT_HELD if held else "",
        count=str(count),
    )
    answered = found[0][0]
    return _sorted_out([row for _, *row in found if row[0] is not None], held, answered, count, check)


def _sorted_out(
    found: Sequence[Sequence[Any]],
    held: Sequence[UUID],
    answered: int,
    count: int,
    check: Check | None,
) -> Found:
    live = sorted((row for row in found if row[0] == "live"), key=lambda row: _rank(row, held))
    # Of two leases of one pair the newer one counts.
    newest = {row[5]: row for row in sorted(found, key=lambda row: row[1] or 0) if row[0] == "expired"}
    pairs = [Pair.of(row[5:], row[0]) for row in found if row[1] is None]
    checks = [pair for pair in pairs if pair.purpose != Lease.Purpose.JUDGE]
    return Found(
        answered + len(live),
        {row[1]: _offer(row) for row in live},
        {row[1]: _offer(row) for row in newest.values()},
        count,
        [pair for pair in pairs if pair.purpose == Lease.Purpose.JUDGE],
        (check, checks[0]) if check is not None and checks else None,
    )


def _rank(row: Sequence[Any], held: Sequence[UUID]) -> tuple[bool, bool, int]:
    _, lease, uuid, _, shown, *_ = row
    return uuid_of(uuid) not in held, not shown, lease


def _offer(row: Sequence[Any]) -> Offer:
    _, _, uuid, swapped, _, _, comparison, first_key, second_key = row
    return Offer(uuid_of(uuid), uuid_of(comparison), first_key, second_key, bool(swapped))


def is_waiting(who: Participant) -> bool:
    """Say whether the queue has a pair for the labeler."""
    return bool(rows(_QUEUE, [who.experiment, who.labeler, who.labeler], count="1", but_held=""))

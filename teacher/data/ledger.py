"""SQLite database of a run's questions, with their segments and decisions."""

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from teacher.data.decisions import CERTAIN, FeedItem, LabelerAnswer, Phase
from teacher.data.ledger_file import (
    VERSION,
    LedgerReader,
    add_other_kinds,
    explained,
    is_held,
    open_to_write,
    path_of_copy,
    write_copy,
)
from teacher.data.segments import Segment
from teacher.errors import DataError
from teacher.settings.options import KindName

Status = Literal["written", "registered", "failed", "cancelled"]
Role = Phase | Literal["gold"]
"""Phase of a question, or ``gold`` for an attention check, which doesn't count toward the label budget."""

LEDGER_NAME = "ledger.sqlite3"
"""File name of the ledger in a run's folder."""
_USABLE = "(decision IS NOT NULL AND decision <> 'cant_tell')"
_ANSWERED = (
    "SELECT id, uuid, decision, probability, seq, first, second "
    "FROM comparison LEFT JOIN pair ON pair.comparison = id"
)
_ANSWERED_AT_ONCE = 64
_HERE = 0  # ID of the labeler of answers given in this process; those of the site start at 1
_OPEN = "(decision IS NULL AND status IN ('written', 'registered'))"
_COPY_SECONDS = 60.0  # between copies for readers, on a network file system

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Question:
    """One or more segments to judge.

    Attributes:
        uuid: UUID assigned by the trainer and also used by the site.
        items: the segments, in the order that answers refer to.
        phase: phase of training that the question is for, or ``gold`` for an attention check.
        step: environment step of training at which the question was created.
        known: right answer if this is an attention check; None if it follows from the items' scores.
        reason: why it was selected, for the site; the ledger doesn't store it.
    """

    uuid: UUID
    items: tuple[Segment, ...]
    phase: Role
    step: int
    kind: KindName = "pair"
    known: str | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Answered:
    """A question's current decision.

    Attributes:
        decision: an answer of the question's kind; None if there is none.
        probability: probability that a pair's first segment is better; None for other kinds.
    """

    uuid: UUID
    kind: str
    items: tuple[Segment, ...]
    decision: str | None
    probability: float | None


class Ledger:
    """Stores one run's comparisons and decisions in an SQLite file; every write survives a crash.

    Only one process may write. Its threads may share a ledger, because each method takes a lock and runs in
    one transaction.

    Args:
        path: path of the file, which is created if it does not exist; None to only count comparisons, in
            memory.
        hard_labels: return preferences with a value of exactly 1, 0.5 or 0 instead of the decision's
            probability. This doesn't change the stored data.
        read_only: open an existing ledger without changing it, even while a run is writing to it.

    Raises:
        DataError: the file is damaged, not a ledger, or not writable (raised by any method), or the ledger is
            read-only (raised by methods that write).
    """

    def __init__(self, path: Path | None, *, hard_labels: bool = False, read_only: bool = False) -> None:
        self.path = path or Path()
        self._counts_only = path is None
        self._hard_labels = hard_labels
        self._lock = threading.RLock()
        self._opened = LedgerReader(self.path) if read_only else open_to_write(path)
        self._is_held = not isinstance(self._opened, LedgerReader) and is_held(self._opened)
        self._is_copied, self._warned, self._next_copy = False, False, math.inf
        if self._is_held:
            self.copy_for_readers()

    def copy_for_readers(self) -> None:
        """Bring the copy for readers up to date, on a file system where they can't open the ledger itself.

        A checkpoint's ledger must hold all that the checkpoint knows, so call this before saving one.
        """
        with self._lock:
            if self._is_held and not self._is_copied and not isinstance(self._opened, LedgerReader):
                began = time.monotonic()
                try:
                    write_copy(self._opened, self.path)
                    self._is_copied, self._warned = True, False
                except (OSError, sqlite3.Error) as error:  # the next one may succeed
                    if not self._warned:
                        _log.warning("cannot copy %s for backups and other readers: %s", self.path, error)
                    self._warned = True
                lasted = time.monotonic() - began
                self._next_copy = time.monotonic() + max(_COPY_SECONDS, 20 * lasted)

    def close(self) -> None:
        """Close the file. The ledger can't be used afterward."""
        with self._lock:
            self._opened.close()
            if self._is_held:
                path_of_copy(self.path).unlink(missing_ok=True)  # from now on, the file itself can be read

    def write(self, questions: Sequence[Question]) -> None:
        """Store questions with their segments, skipping any that are already stored."""
        # Compress before taking the lock, because that takes longer than writing.
        rows = [(question, [self._bytes(item) for item in question.items]) for question in questions]
        with self._transaction() as connection:
            for question, items in rows:
                inserted = connection.execute(
                    "INSERT INTO comparison (uuid, phase, step, status) VALUES (?, ?, ?, 'written') "
                    "ON CONFLICT (uuid) DO NOTHING RETURNING id",
                    (question.uuid.bytes, question.phase, question.step),
                ).fetchone()
                if inserted is not None and question.kind == "pair":
                    connection.execute("INSERT INTO pair VALUES (?, ?, ?)", (*inserted, *items))
                elif inserted is not None:
                    add_other_kinds(connection)
                    row = (*inserted, question.kind, question.known)
                    connection.execute("INSERT INTO question VALUES (?, ?, ?)", row)
                    entries = [(*inserted, *each) for each in enumerate(items)]
                    connection.executemany("INSERT INTO item VALUES (?, ?, ?)", entries)

    def _bytes(self, segment: Segment) -> bytes:
        return b"" if self._counts_only else segment.to_bytes()

    def set_status(self, uuids: Iterable[UUID], status: Status) -> None:
        """Set the delivery status of these comparisons."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE comparison SET status = ? WHERE uuid = ?", [(status, uuid.bytes) for uuid in uuids]
            )

    def record(self, decisions: Sequence[FeedItem], cursor: int) -> None:
        """Store decisions from the feed, together with the new cursor, in one transaction.

        Decisions may arrive more than once and in any order. An older decision never replaces a newer one,
        and the cursor never moves back.

        Raises:
            DataError: a comparison is not in the ledger, or a probability is invalid; nothing is stored.
        """
        with self._transaction() as connection:
            for item in decisions:
                known = connection.execute(
                    "SELECT id FROM comparison WHERE uuid = ?", (item.comparison.bytes,)
                ).fetchone()
                if known is None:
                    raise DataError(
                        f"received a decision for comparison {item.comparison}, which is not in "
                        f"{self.path}; only comparisons of this run can have decisions"
                    )
                is_newest = connection.execute(
                    "UPDATE comparison SET decision = ?, probability = ?, seq = ? "
                    "WHERE id = ? AND coalesce(seq, -1) < ?",
                    (item.decision, _probability(item), item.seq, known[0], item.seq),
                ).rowcount
                if is_newest:
                    _replace_answers(connection, known[0], item)
            connection.execute("UPDATE feed SET cursor = max(cursor, ?)", (cursor,))

    def decide(self, decisions: Sequence[tuple[UUID, str, float | None]]) -> None:
        """Store decisions made in this process, with their probabilities, and number them."""
        items = [FeedItem(seq, *each, n_labels=1) for seq, each in enumerate(decisions, self.cursor + 1)]
        if items:
            self.record(items, cursor=items[-1].seq)

    @property
    def cursor(self) -> int:
        """Return the ``seq`` of the last feed item read; 0 if none has been read."""
        return self._number("SELECT cursor FROM feed")

    def outcomes(self, after: int) -> dict[int, tuple[UUID, str | None]]:
        """Return ``{seq: (comparison UUID, decision)}`` for the feed items newer than ``after``.

        Only the newest item of each comparison is included. The decision is None if it was withdrawn.
        """
        query = "SELECT seq, uuid, decision FROM comparison WHERE seq > ? ORDER BY seq"
        return {seq: (UUID(bytes=uuid), decision) for seq, uuid, decision in self._rows(query, (after,))}

    def total(self) -> int:
        """Return the number of comparisons ever written, in any state, including attention checks."""
        return self._number("SELECT count(*) FROM comparison")

    def asked(self, phase: Phase | None = None) -> int:
        """Return the number of comparisons that are open or usable, and so count toward the label budget.

        Args:
            phase: count only this phase; None counts all phases except attention checks.
        """
        return self._count(f"({_OPEN} OR {_USABLE})", phase)

    def usable(self, phase: Phase | None = None) -> int:
        """Return the number of questions with an answer other than ``cant_tell``.

        If ``phase`` is None, count all phases except attention checks.
        """
        return self._count(_USABLE, phase)

    def cant_tell(self) -> int:
        """Return the number of comparisons labeled ``cant_tell``."""
        return self._count("(decision = 'cant_tell')", None)

    def open(self, phase: Phase | None = None) -> int:
        """Return the number of comparisons waiting for a decision.

        If ``phase`` is None, count all phases except attention checks.
        """
        return self._count(_OPEN, phase)

    def gold(self) -> int:
        """Return the number of attention checks, excluding canceled ones and ones that failed to render."""
        return self._number(
            "SELECT count(*) FROM comparison WHERE phase = 'gold' AND status IN ('written', 'registered')"
        )

    def on_their_way(self) -> int:
        """Return the number of undecided comparisons not yet registered on the site."""
        return self._count("(decision IS NULL AND status = 'written')", None)

    def answered(self, uuids: Iterable[UUID] | None = None) -> Iterator[Answered]:
        """Yield the current decisions of questions.

        Args:
            uuids: UUIDs of the questions, which determine the order; None for every question that has an
                answer other than ``cant_tell``, oldest decision first, read in small batches.
        """
        if uuids is not None:
            for uuid in dict.fromkeys(uuid.bytes for uuid in uuids):
                yield from map(self._answered, self._rows(f"{_ANSWERED} WHERE uuid = ?", (uuid,)))
            return
        after = -1
        query = f"{_ANSWERED} WHERE {_USABLE} AND seq > ? ORDER BY seq LIMIT {_ANSWERED_AT_ONCE}"
        while rows := self._rows(query, (after,)):
            yield from map(self._answered, rows)
            after = rows[-1][4]

    def answers(self, kind: KindName) -> list[tuple[UUID, int, str]]:
        """Return each labeler's answers to a kind's questions, oldest first, without "can't tell".

        Returns:
            The question's UUID, the labeler's ID (0 for answers given in this process) and the answer.
        """
        if self._number("PRAGMA user_version") < VERSION:
            return []
        rows = self._rows(
            "SELECT uuid, labeler, answer.answer FROM answer JOIN question ON question.id = answer.question "
            "JOIN comparison USING (id) WHERE kind = ? AND decision <> 'cant_tell' "
            "AND answer.answer <> 'cant_tell' AND phase <> 'gold' ORDER BY answer.seq, id, labeler",
            (kind,),
        )
        return [(UUID(bytes=uuid), labeler, answer) for uuid, labeler, answer in rows]

    def _answered(self, row: Sequence[Any]) -> Answered:
        place, uuid, decision, probability, _, *pair = row
        probability = CERTAIN.get(decision, probability) if self._hard_labels else probability
        kind, _, items = self._asked(place, *pair)
        return Answered(UUID(bytes=uuid), kind, items, decision, probability)

    def _asked(
        self, place: int, first: bytes | None, second: bytes | None
    ) -> tuple[KindName, str | None, tuple[Segment, ...]]:
        """Return a question's kind, known answer and items."""
        if first is not None and second is not None:
            return "pair", None, self._segments(first, second)
        [(kind, known)] = self._rows("SELECT kind, known FROM question WHERE id = ?", (place,))
        items = self._rows("SELECT segment FROM item WHERE question = ? ORDER BY position", (place,))
        return kind, known, self._segments(*(item for (item,) in items))

    def decided_items(self, count: int) -> list[tuple[Segment, ...]]:
        """Return the items of the ``count`` most recently created questions with a decision, oldest first."""
        rows = self._rows(
            "SELECT id, first, second FROM comparison LEFT JOIN pair ON pair.comparison = id "
            "WHERE decision IS NOT NULL ORDER BY id DESC LIMIT ?",
            (count,),
        )
        return [self._asked(*row)[2] for row in reversed(rows)]

    def segment_length(self) -> int | None:
        """Return the number of steps per segment; None if the ledger is empty."""
        rows = self._rows(
            "SELECT id, first, second FROM comparison LEFT JOIN pair ON pair.comparison = id LIMIT 1"
        )
        return len(self._asked(*rows[0])[2][0]) if rows else None

    def unfinished(self, status: Status = "written") -> list[Question]:
        """Return the questions with this delivery status that have never had a decision.

        At startup, comparisons with status ``written`` are left over from a process that was killed.
        """
        rows = self._rows(
            "SELECT uuid, phase, step, id, first, second FROM comparison "
            "LEFT JOIN pair ON pair.comparison = id "
            "WHERE status = ? AND decision IS NULL AND seq IS NULL ORDER BY id",
            (status,),
        )
        found = [(UUID(bytes=row[0]), row[1], row[2], self._asked(*row[3:])) for row in rows]
        return [
            Question(uuid, items, phase, step, kind, known)
            for uuid, phase, step, (kind, known, items) in found
        ]

    def _segments(self, *items: bytes) -> tuple[Segment, ...]:
        try:
            return tuple(map(Segment.from_bytes, items))
        except DataError as error:
            raise DataError(f"{self.path} is damaged: {error}") from error

    def _count(self, condition: str, phase: Phase | None) -> int:
        return self._number(
            f"SELECT count(*) FROM comparison WHERE {condition} AND phase = coalesce(?, phase) "  # noqa: S608
            "AND phase <> 'gold'",
            (phase,),
        )

    def _number(self, query: str, parameters: Sequence[object] = ()) -> int:
        return int(self._rows(query, parameters)[0][0])

    def _rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, explained(self.path):
            if isinstance(self._opened, LedgerReader):
                return self._opened.rows(query, parameters)
            rows = self._opened.execute(query, parameters).fetchall()
            self._copy_if_due()
            return rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the ``with`` block as one transaction, which is committed to disk when the block ends."""
        if isinstance(self._opened, LedgerReader):
            raise DataError(f"{self.path} was opened read-only and cannot be written to")
        with self._lock, explained(self.path):
            self._opened.execute("BEGIN IMMEDIATE")
            with self._opened as connection:
                yield connection
            self._is_copied = False
            self._copy_if_due()

    def _copy_if_due(self) -> None:
        if time.monotonic() >= self._next_copy:
            self.copy_for_readers()


def _replace_answers(connection: sqlite3.Connection, question: int, item: FeedItem) -> None:
    """Replace the labelers' answers to a question; do nothing for a pair, whose decision is enough."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < VERSION:
        return
    if connection.execute("SELECT 1 FROM question WHERE id = ?", (question,)).fetchone() is None:
        return
    before = connection.execute("SELECT labeler, answer, seq FROM answer WHERE question = ?", (question,))
    since = {LabelerAnswer(labeler, answer): seq for labeler, answer, seq in before}
    given = item.answers
    if given is None:
        given = () if item.decision is None else (LabelerAnswer(_HERE, item.decision),)
    connection.execute("DELETE FROM answer WHERE question = ?", (question,))
    connection.executemany(
        "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?)",
        [(question, each.labeler, each.answer, since.get(each, item.seq)) for each in given],
    )


def _probability(item: FeedItem) -> float | None:
    """Return a feed item's probability, or None for ``cant_tell``; raise DataError for an invalid one."""
    of_pair = item.decision in CERTAIN or item.decision is None
    has_target = item.decision in ("first", "second", "equal")
    is_missing = of_pair and has_target != (item.probability is not None)
    if is_missing or not 0 <= (item.probability or 0) <= 1:
        raise DataError(
            f"comparison {item.comparison} has decision {item.decision} and probability {item.probability}; "
            "first, second and equal need a probability in [0, 1], and other decisions must have none"
        )
    return item.probability

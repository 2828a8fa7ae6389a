"""Audit of all labels of an experiment.

Scripted labelers log each label that the site acknowledged, the site's database holds the labels it stored,
and the run's ledger those that reached the trainer. None may be lost, doubled or inverted between them.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.table import Table

from stack.errors import StackError
from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Run a SELECT on the site's database and return its rows."""

TARGETS = {"first": 1.0, "second": 0.0, "equal": 0.5}

_LABELS = """
    SELECT experiment.name, label.uuid, comparison.uuid, label.choice, label.swapped,
           label.status = 'counted' AND undo.id IS NULL, labeler.name, experiment.overlap,
           comparison.first_return, comparison.second_return
    FROM feedback_label label
    JOIN feedback_comparison comparison ON comparison.id = label.comparison_id
    JOIN feedback_experiment experiment ON experiment.id = comparison.experiment_id
    JOIN feedback_labeler labeler ON labeler.id = label.labeler_id
    LEFT JOIN feedback_undo undo ON undo.label_id = label.id
"""
_DECISIONS = """
    SELECT experiment.name, decision.seq, comparison.uuid, decision.decision
    FROM feedback_decision decision
    JOIN feedback_comparison comparison ON comparison.id = decision.comparison_id
    JOIN feedback_experiment experiment ON experiment.id = decision.experiment_id
    ORDER BY decision.seq
"""
_STEPS = """
    SELECT experiment.name, comparison.step
    FROM feedback_comparison comparison
    JOIN feedback_experiment experiment ON experiment.id = comparison.experiment_id
"""
_BOT = "bot-"  # prefix of scripted labelers' names
_OPEN, _OPEN_PER_BOT = 20, 4  # maximum of open comparisons


@dataclass(frozen=True)
class Evidence:
    """Data sources of an audit.

    Attributes:
        experiment: name of the experiment on the site.
        wanted: total labels of the run.
        bots: number of scripted labelers.
        answers: log of acknowledged labels, a line of JSON each.
        ledger: ledger of the ended run.
        query: runs a SELECT on the site's database.
        bots_killed: number of killed labelers, each of which may have missed its last acknowledgment.
    """

    experiment: str
    wanted: int
    bots: int
    answers: Path
    ledger: Path
    query: Query
    bots_killed: int = 0

    def acknowledged(self) -> list[dict[str, Any]]:
        """Return the labels that labelers saw acknowledged.

        Raises:
            StackError: a line cannot be parsed. If labelers were killed, the last line may be incomplete; its
                label counts as not acknowledged.
        """
        text = self.answers.read_text(errors="replace") if self.answers.exists() else ""
        lines, answers = text.splitlines(), []
        for number, line in enumerate(lines, 1):
            if (answer := _answer(line)) is not None:
                answers.append(answer)
            elif number < len(lines) or text.endswith("\n") or not self.bots_killed:
                raise StackError(
                    f"{self.answers} line {number}: expected a label as JSON, got {line[:40]!r}; can't audit "
                    "the labels without it"
                )
        return answers

    def rows(self, statement: str) -> list[Sequence[Any]]:
        """Return the rows of this experiment, without its name, which is their first column."""
        return [row[1:] for row in self.query(statement) if row[0] == self.experiment]


@dataclass(frozen=True)
class Audit:
    """Result of an audit: counts of labels in each place, and of faults.

    Attributes:
        wanted: total labels of the run.
        asked: comparisons that the run submitted.
        acknowledged: labels that labelers saw acknowledged.
        stored: their labels in the site's database.
        reached: decisions that the trainer has.
        late: decisions after the end of training, each by a labeler who held the pair then.
        unanswered: comparisons among the last submitted that were open at the end of training.
        lost: acknowledged labels missing on the site, or decisions missing in the ledger.
        doubled: labels that count twice or beyond the wanted number.
        inverted: labels or decisions that differ between places or from the true returns.
        unknown: labels that no labeler saw acknowledged, or decisions that the site never made.
        stuck: comparisons that stayed open although many later ones were labeled.
        gaps: numbers that the feed skipped or repeated.
    """

    wanted: int
    asked: int
    acknowledged: int
    stored: int
    reached: int
    late: int
    unanswered: int
    lost: int
    doubled: int
    inverted: int
    unknown: int
    stuck: int
    gaps: int

    @property
    def faults(self) -> dict[str, int]:
        """Counts of faults by kind."""
        names = ("lost", "doubled", "inverted", "unknown", "stuck", "gaps")
        return {name: getattr(self, name) for name in names}

    @property
    def holds(self) -> bool:
        """True if there is no fault and every wanted label has reached the trainer."""
        is_complete = self.asked == self.reached == self.wanted and self.unanswered == 0
        return is_complete and not any(self.faults.values())

    def table(self) -> Table:
        """Return the audit as a table for the console."""
        table = Table(title="Audit of the labels", title_justify="left", box=None, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        facts = (
            ("asked", self.asked, f"of {self.wanted}"),
            ("acknowledged", self.acknowledged, "to the labelers"),
            ("in the database", self.stored, ""),
            ("reached the trainer", self.reached, ""),
            ("late", self.late, "after the end of training"),
            ("unlabeled", self.unanswered, "among the last asked"),
        )
        for name, count, remark in facts:
            table.add_row(name, str(count), remark)
        for name, count in self.faults.items():
            table.add_row(name, str(count), style="bold red" if count else "green")
        return table


@dataclass(frozen=True)
class _Label:
    uuid: UUID
    comparison: UUID
    choice: str
    swapped: bool
    counts: bool
    labeler: str
    overlap: int
    returns: tuple[float | None, float | None]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "_Label":
        uuid, comparison, choice, swapped, counts, labeler, overlap, *returns = row
        return cls(
            _uuid(uuid),
            _uuid(comparison),
            choice,
            bool(swapped),
            bool(counts),
            labeler,
            overlap,
            tuple(returns),
        )

    @property
    def verdict(self) -> str:
        """The label in terms of first and second, independent of the sides on the screen."""
        if self.choice not in ("left", "right"):
            return self.choice
        return "first" if (self.choice == "left") != self.swapped else "second"


def audit(evidence: Evidence) -> Audit:
    """Compare the labels in all places with each other and with the true returns.

    Raises:
        StackError: as by :meth:`Evidence.acknowledged`.
    """
    acknowledged = evidence.acknowledged()
    seen = {UUID(line["uuid"]): line for line in acknowledged}
    labels = [_Label.of(row) for row in evidence.rows(_LABELS)]
    stored = {label.uuid: label for label in labels if label.labeler.startswith(_BOT)}
    inverted = [label for label in stored.values() if _is_inverted(label, seen.get(label.uuid))]
    unknown = len(stored.keys() - seen.keys())

    feed = [(seq, _uuid(uuid), decision) for seq, uuid, decision in evidence.rows(_DECISIONS)]
    counts = Counter(label.comparison for label in labels if label.counts)
    overlap = max((label.overlap for label in labels), default=1)
    by_bots = {label.comparison for label in stored.values()} - {
        label.comparison for label in labels if label.uuid not in stored
    }
    with contextlib.closing(Ledger(evidence.ledger, read_only=True)) as ledger:
        decided = {uuid: decision for seq, uuid, decision in feed if seq <= ledger.cursor}
        due = {uuid: TARGETS[decision] for uuid, decision in decided.items() if decision in TARGETS}
        held = {preference.uuid: preference for preference in ledger.preferences()}
        open_ = ledger.unfinished("written") + ledger.unfinished("registered")
        asked, late = ledger.asked(), sum(seq > ledger.cursor for seq, _, _ in feed)
    wrong = [
        uuid
        for uuid in due.keys() & held.keys()
        if held[uuid].value != due[uuid] or (uuid in by_bots and held[uuid].value != _truth(held[uuid]))
    ]
    steps = [step for (step,) in evidence.rows(_STEPS)]
    allowed = _OPEN + _OPEN_PER_BOT * evidence.bots
    stuck = [item for item in open_ if sum(step > item.step for step in steps) > allowed]
    return Audit(
        wanted=evidence.wanted,
        asked=asked,
        acknowledged=len(acknowledged),
        stored=len(stored),
        reached=len(due.keys() & held.keys()),
        late=late,
        unanswered=len(open_) - len(stuck),
        lost=len(seen.keys() - stored.keys()) + len(due.keys() - held.keys()) + max(0, late - evidence.bots),
        doubled=len(acknowledged) - len(seen) + sum(max(0, count - overlap) for count in counts.values()),
        inverted=len(inverted) + len(wrong),
        unknown=max(0, unknown - evidence.bots_killed) + len(held.keys() - due.keys()),
        stuck=len(stuck),
        gaps=_gaps([seq for seq, _, _ in feed]),
    )


def _answer(line: str) -> dict[str, Any] | None:
    """Return the label in a log line, None if it cannot be parsed."""
    try:
        answer: dict[str, Any] = json.loads(line)
        UUID(answer["uuid"]), UUID(answer["comparison"]), answer["choice"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return answer


def _is_inverted(label: _Label, line: Mapping[str, Any] | None) -> bool:
    """Return whether a stored label differs from the logged one or from the true returns."""
    if line is not None and (label.choice, label.comparison) != (line["choice"], UUID(line["comparison"])):
        return True
    first, second = label.returns
    if first is None or second is None:
        return label.verdict != "cant_tell"
    return label.verdict != ("equal" if first == second else "first" if first > second else "second")


def _truth(preference: Preference) -> float:
    """Return the training target by the true returns of the segments."""
    difference = preference.first.true_return - preference.second.true_return
    return 0.5 if difference == 0 else float(difference > 0)


def _gaps(numbers: Sequence[int]) -> int:
    return len(set(range(1, max(numbers, default=0) + 1)) ^ set(numbers)) + len(numbers) - len(set(numbers))


def _uuid(value: Any) -> UUID:
    """Return a UUID from a database value, a UUID in PostgreSQL and text in SQLite."""
    return UUID(str(value))

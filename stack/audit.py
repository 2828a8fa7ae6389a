"""Checks that none of an experiment's labels were lost, counted twice or inverted.

The audit compares three records: the scripted labelers' log of labels that the site acknowledged, the labels
and decisions in the site's database, and the decisions in the trainer's ledger.
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

from stack.process import StackError
from teacher.data.decisions import CANT_TELL, CERTAIN
from teacher.data.ledger import Answered, Ledger
from teacher.queries.kinds import KINDS

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Function that runs a SELECT statement on the site's database and returns the rows."""

_LABELS = """
    SELECT experiment.name, label.uuid, comparison.uuid, comparison.kind, label.choice, label.answer,
           label.status = 'counted' AND undo.id IS NULL, labeler.name, experiment.overlap,
           comparison.first_return, comparison.second_return,
           comparison.third_return, comparison.fourth_return
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
_OPEN, _OPEN_PER_BOT = 20, 4  # maximum number of open comparisons: 20 plus 4 per scripted labeler


@dataclass(frozen=True)
class Evidence:
    """Data sources of an audit."""

    experiment: str  # name of the experiment on the site
    wanted: int  # number of labels that the run was configured to collect
    bots: int  # number of scripted labelers
    answers: Path  # path of the log of acknowledged labels, one JSON object per line
    ledger: Path  # path of the finished run's ledger
    query: Query  # function that runs a SELECT statement on the site's database and returns the rows
    # number of scripted labelers that were killed. Each may have sent one label without logging the
    # acknowledgment
    bots_killed: int = 0

    def acknowledged(self) -> list[dict[str, Any]]:
        """Return the labels in the log; an incomplete last line of a killed labeler is ignored."""
        text = self.answers.read_text(errors="replace") if self.answers.exists() else ""
        lines, answers = text.splitlines(), []
        for number, line in enumerate(lines, 1):
            if (answer := _parse_answer(line)) is not None:
                answers.append(answer)
            elif number < len(lines) or text.endswith("\n") or not self.bots_killed:
                raise StackError(
                    f"{self.answers} line {number}: expected a label as JSON, got {line[:40]!r}; the log is "
                    "damaged, so the labels can't be audited"
                )
        return answers

    def rows(self, statement: str) -> list[Sequence[Any]]:
        """Return this experiment's rows of ``statement``, whose first column is its name."""
        return [row[1:] for row in self.query(statement) if row[0] == self.experiment]


@dataclass(frozen=True)
class Audit:
    """Result of an audit: counts of labels and decisions in each data source, and of faults by kind.

    The faults are ``lost``, ``doubled``, ``inverted``, ``unknown``, ``stuck`` and ``gaps``.
    """

    wanted: int  # number of labels that the run was configured to collect
    asked: int  # number of comparisons that the run submitted
    acknowledged: int  # number of labels in the log of acknowledged labels
    stored: int  # number of scripted labelers' labels in the site's database
    reached: int  # number of the site's decisions found in the trainer's ledger
    late: int  # number of decisions made after training ended; one per scripted labeler is tolerated
    unanswered: int  # number of recently submitted comparisons that were still open at the end of training
    # number of acknowledged labels missing from the database, decisions missing from the ledger, and late
    # decisions beyond one per scripted labeler
    lost: int
    # number of duplicate labels in the log, and of counted labels beyond the experiment's limit per
    # comparison
    doubled: int
    # number of labels or decisions that differ between data sources or contradict the true returns
    inverted: int
    # number of stored labels that were never acknowledged, and of decisions in the ledger that the site never
    # made
    unknown: int
    stuck: int  # number of comparisons that stayed open although many later ones were submitted
    gaps: int  # number of sequence numbers that were skipped or repeated in the site's decision feed

    @property
    def faults(self) -> dict[str, int]:
        """Return the fault counts, keyed by kind."""
        names = ("lost", "doubled", "inverted", "unknown", "stuck", "gaps")
        return {name: getattr(self, name) for name in names}

    @property
    def holds(self) -> bool:
        """Return True if there are no faults and every wanted label has reached the trainer."""
        is_complete = self.asked == self.reached == self.wanted and self.unanswered == 0
        return is_complete and not any(self.faults.values())

    def table(self) -> Table:
        """Return a table of all counts for the console."""
        table = Table(title="Audit of the labels", title_justify="left", box=None, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        facts = (
            ("submitted", self.asked, f"of {self.wanted} comparisons"),
            ("acknowledged", self.acknowledged, "labels"),
            ("in the database", self.stored, "labels"),
            ("reached the trainer", self.reached, "decisions"),
            ("late", self.late, "decisions after the end of training"),
            ("unlabeled", self.unanswered, "comparisons among the last submitted"),
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
    kind: str
    choice: str
    answer: str
    counts: bool
    labeler: str
    overlap: int
    returns: Sequence[float | None]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "_Label":
        uuid, comparison, kind, choice, answer, counts, labeler, overlap, *returns = row
        returns = returns[: KINDS[kind].size]
        return cls(
            _uuid(uuid), _uuid(comparison), kind, choice, answer, bool(counts), labeler, overlap, returns
        )


def audit(evidence: Evidence) -> Audit:
    """Compare all records with each other and with the true returns; count labels and faults."""
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
        due = {uuid: answer for uuid, answer in decided.items() if answer not in (None, CANT_TELL)}
        held = {answered.uuid: answered for answered in ledger.answered()}
        unfinished = ledger.unfinished("written") + ledger.unfinished("registered")
        open_ = [question for question in unfinished if question.phase != "gold"]
        asked, late = ledger.asked(), sum(seq > ledger.cursor for seq, _, _ in feed)
    wrong = [
        uuid
        for uuid in due.keys() & held.keys()
        if not _is_same(held[uuid], due[uuid]) or (uuid in by_bots and not _is_true(held[uuid]))
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


def _parse_answer(line: str) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(line)
        UUID(answer["uuid"]), UUID(answer["comparison"]), answer["choice"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return answer


def _is_inverted(label: _Label, line: Mapping[str, Any] | None) -> bool:
    """Return True if a stored label differs from its log entry ``line`` or contradicts the true returns."""
    if line is not None and (label.choice, label.comparison) != (line["choice"], UUID(line["comparison"])):
        return True
    returns = [value for value in label.returns if value is not None]
    if len(returns) < len(label.returns):
        return label.answer != CANT_TELL
    return not KINDS[label.kind].fits(label.answer, returns)


def _is_same(answered: Answered, decision: str) -> bool:
    """Return True if the ledger has this decision, and the probability that follows from it."""
    certain = CERTAIN.get(decision, answered.probability)
    return answered.decision == decision and answered.probability == certain


def _is_true(answered: Answered) -> bool:
    """Return True if the decision agrees with the segments' true returns."""
    returns = [item.true_return for item in answered.items]
    return answered.decision is not None and KINDS[answered.kind].fits(answered.decision, returns)


def _gaps(numbers: Sequence[int]) -> int:
    return len(set(range(1, max(numbers, default=0) + 1)) ^ set(numbers)) + len(numbers) - len(set(numbers))


def _uuid(value: Any) -> UUID:
    return UUID(str(value))

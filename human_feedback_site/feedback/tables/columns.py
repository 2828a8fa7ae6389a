"""The tables that are exported and imported: comparisons with their decisions, and every label ever given.

Together they hold what a paper needs, and what another site needs to go on. Rows come in the order in which
the site recorded them, so that what was imported is exported again as it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.expressions import Combinable

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease, Outcome
from human_feedback_site.feedback.models.querysets import label_outcome, newest_decision

_ROWS_AT_ONCE = 2000  # that the database hands over


class Kind(StrEnum):
    """What the cells of a column hold."""

    TEXT = "text"
    UUID = "uuid"
    WHOLE = "whole number"
    NUMBER = "number"
    YES_NO = "true or false"
    TIME = "time"


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        source: where the database has it.
        nullable: whether its cells may be empty.
        choices: all that its texts may say.
        least: of its whole numbers; ``most`` likewise.
    """

    name: str
    kind: Kind
    source: str | Combinable
    nullable: bool = False
    choices: frozenset[str] | None = None
    least: int = 0
    most: int = 2**31 - 1


@dataclass(frozen=True)
class Table:
    """A table of an experiment."""

    name: str
    columns: Sequence[Column]
    records: Callable[[Experiment], QuerySet[Any]]

    def rows(self, experiment: Experiment) -> Iterator[tuple[Any, ...]]:
        """Yield the rows, which the database hands over bit by bit."""
        sources = {
            f"column_{at}": F(column.source) if isinstance(column.source, str) else column.source
            for at, column in enumerate(self.columns)
        }
        found = self.records(experiment).annotate(**sources).order_by("pk").values_list(*sources)
        return iter(found.iterator(chunk_size=_ROWS_AT_ONCE))


_MOST_LABELS = 2**15 - 1  # of one comparison
_OUTCOMES = frozenset(Outcome.values)

COMPARISONS = Table(
    "comparisons",
    (
        Column("comparison", Kind.UUID, "uuid"),
        Column("phase", Kind.TEXT, "phase", choices=frozenset(Comparison.Phase.values)),
        Column("step", Kind.WHOLE, "step", most=2**63 - 1),
        Column("priority", Kind.WHOLE, "priority", least=-1000, most=1000),
        Column("status", Kind.TEXT, "status", choices=frozenset(Comparison.Status.values)),
        Column("gold", Kind.TEXT, "gold", nullable=True, choices=_OUTCOMES - {Outcome.CANT_TELL}),
        Column("wanted", Kind.WHOLE, "wanted", least=1, most=_MOST_LABELS),
        Column("n_labels", Kind.WHOLE, "n_labels", most=_MOST_LABELS),
        Column("decision", Kind.TEXT, newest_decision("decision"), nullable=True, choices=_OUTCOMES),
        Column("probability", Kind.NUMBER, newest_decision("probability"), nullable=True),
        Column("decided_at", Kind.TIME, newest_decision("created_at"), nullable=True),
        Column("first_key", Kind.TEXT, "first_key"),
        Column("second_key", Kind.TEXT, "second_key"),
        Column("first_return", Kind.NUMBER, "first_return", nullable=True),
        Column("second_return", Kind.NUMBER, "second_return", nullable=True),
        Column("created_at", Kind.TIME, "created_at"),
    ),
    lambda experiment: Comparison.objects.filter(experiment=experiment),
)
LABELS = Table(
    "labels",
    (
        Column("label", Kind.UUID, "uuid"),
        Column("comparison", Kind.UUID, "comparison__uuid"),
        Column("labeler", Kind.TEXT, "labeler__name"),
        Column("choice", Kind.TEXT, "choice", choices=frozenset(Label.Choice.values)),
        Column("swapped", Kind.YES_NO, "swapped"),
        Column("meaning", Kind.TEXT, label_outcome(), choices=_OUTCOMES),
        Column("status", Kind.TEXT, "status", choices=frozenset(Label.Status.values)),
        Column("purpose", Kind.TEXT, "lease__purpose", choices=frozenset(Lease.Purpose.values)),
        Column("lease", Kind.UUID, "lease__uuid"),
        Column("prompt_version", Kind.WHOLE, "prompt_version", least=1),
        Column("response_ms", Kind.WHOLE, "response_ms", nullable=True),
        Column("shown_ms", Kind.WHOLE, "shown_ms", nullable=True),
        Column("created_at", Kind.TIME, "created_at"),
        Column("undo", Kind.UUID, "undo__uuid", nullable=True),
        Column("undone_at", Kind.TIME, "undo__created_at", nullable=True),
    ),
    lambda experiment: Label.objects.filter(comparison__experiment=experiment),
)
TABLES: Mapping[str, Table] = {table.name: table for table in (COMPARISONS, LABELS)}

"""Definitions of the exported and imported tables: comparisons with their decisions, and all labels.

Together they contain everything that a paper needs, and everything that another site needs to continue the
experiment. Rows are in the order in which the site recorded them, so a file stays the same if it is
imported and exported again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.expressions import Combinable

from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Comparison, Experiment, Label, Labeler, Lease
from human_feedback_site.feedback.models.querysets import newest_decision

_ROWS_AT_ONCE = 2000  # fetched from the database per chunk


class Kind(StrEnum):
    """Type of a column's cells; the values appear in error messages."""

    TEXT = "text"
    UUID = "a UUID"
    WHOLE = "a whole number"
    NUMBER = "a number"
    YES_NO = "true or false"
    TIME = "a time"


@dataclass(frozen=True)
class Column:
    """A column of an exported table."""

    name: str
    kind: Kind
    source: str | Combinable  # Django field lookup or query expression for the column's value
    nullable: bool = False  # True if cells may be empty
    optional: bool = False  # True if imported files may lack the column, as exports of early versions do
    choices: frozenset[str] | None = None  # allowed values, or None if any text is allowed
    least: int = 0  # smallest allowed value of an integer column
    most: int = 2**31 - 1  # largest allowed value of an integer column


@dataclass(frozen=True)
class Table:
    """An exported table of an experiment."""

    name: str
    columns: Sequence[Column]
    # function that returns the queryset of an experiment's rows
    records: Callable[[Experiment], QuerySet[Any]]

    def rows(self, experiment: Experiment) -> Iterator[tuple[Any, ...]]:
        """Yield an experiment's rows, oldest first, fetched from the database in chunks."""
        sources = {
            f"column_{at}": F(column.source) if isinstance(column.source, str) else column.source
            for at, column in enumerate(self.columns)
        }
        found = self.records(experiment).annotate(**sources).order_by("pk").values_list(*sources)
        return iter(found.iterator(chunk_size=_ROWS_AT_ONCE))


_MOST_LABELS = 2**15 - 1  # per comparison

COMPARISONS = Table(
    "comparisons",
    (
        Column("comparison", Kind.UUID, "uuid"),
        Column("phase", Kind.TEXT, "phase", choices=frozenset(Comparison.Phase.values)),
        Column("step", Kind.WHOLE, "step", most=2**63 - 1),
        Column("priority", Kind.WHOLE, "priority", least=-1000, most=1000),
        Column("status", Kind.TEXT, "status", choices=frozenset(Comparison.Status.values)),
        Column("gold", Kind.TEXT, "gold", nullable=True),
        Column("wanted", Kind.WHOLE, "wanted", least=1, most=_MOST_LABELS),
        Column("n_labels", Kind.WHOLE, "n_labels", most=_MOST_LABELS),
        Column("decision", Kind.TEXT, newest_decision("decision"), nullable=True),
        Column("probability", Kind.NUMBER, newest_decision("probability"), nullable=True),
        Column("decided_at", Kind.TIME, newest_decision("created_at"), nullable=True),
        Column("first_key", Kind.TEXT, "first_key"),
        Column("second_key", Kind.TEXT, "second_key", nullable=True),
        Column("first_return", Kind.NUMBER, "first_return", nullable=True),
        Column("second_return", Kind.NUMBER, "second_return", nullable=True),
        Column("created_at", Kind.TIME, "created_at"),
        Column("kind", Kind.TEXT, "kind", optional=True, choices=frozenset(KINDS)),
        Column("third_key", Kind.TEXT, "third_key", nullable=True, optional=True),
        Column("fourth_key", Kind.TEXT, "fourth_key", nullable=True, optional=True),
        Column("third_return", Kind.NUMBER, "third_return", nullable=True, optional=True),
        Column("fourth_return", Kind.NUMBER, "fourth_return", nullable=True, optional=True),
        Column("reason", Kind.TEXT, "reason", nullable=True, optional=True),
        Column("settled", Kind.TEXT, "settled", nullable=True, optional=True),
    ),
    lambda experiment: Comparison.objects.filter(experiment=experiment),
)
LABELS = Table(
    "labels",
    (
        Column("label", Kind.UUID, "uuid"),
        Column("comparison", Kind.UUID, "comparison__uuid"),
        Column("labeler", Kind.TEXT, "labeler__name"),
        Column("choice", Kind.TEXT, "choice"),
        Column("swapped", Kind.YES_NO, "swapped"),
        Column("meaning", Kind.TEXT, "answer"),
        Column("status", Kind.TEXT, "status", choices=frozenset(Label.Status.values)),
        Column("purpose", Kind.TEXT, "lease__purpose", choices=frozenset(Lease.Purpose.values)),
        Column("lease", Kind.UUID, "lease__uuid"),
        Column("prompt_version", Kind.WHOLE, "prompt_version", optional=True, least=1),
        Column("response_ms", Kind.WHOLE, "response_ms", nullable=True),
        Column("shown_ms", Kind.WHOLE, "shown_ms", nullable=True),
        Column("created_at", Kind.TIME, "created_at"),
        Column("undo", Kind.UUID, "undo__uuid", nullable=True),
        Column("undone_at", Kind.TIME, "undo__created_at", nullable=True),
        Column(
            "labeler_kind",
            Kind.TEXT,
            "labeler__kind",
            optional=True,
            choices=frozenset(Labeler.Kind.values),
        ),
        Column("reason", Kind.TEXT, "reason", nullable=True, optional=True),
    ),
    lambda experiment: Label.objects.filter(comparison__experiment=experiment),
)
TABLES: Mapping[str, Table] = {table.name: table for table in (COMPARISONS, LABELS)}

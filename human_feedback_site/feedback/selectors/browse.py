"""Reads: comparisons by what became of them, and all that ever happened to one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.paginator import Page
from django.db.models import Count, Exists, OuterRef, QuerySet, Subquery
from django.utils.functional import cached_property

from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
    Outcome,
)
from human_feedback_site.feedback.models.querysets import (
    label_outcome,
    live_leases,
    newest_decision,
    not_undone,
)

MOST_COUNTED = 10_000
"""Matching comparisons are counted up to here, and no more are listed: who looks for one, filters more."""

STATES = ("waiting", "leased", "answered", "decided", "cancelled", "gold")
NOTHING = "none"  # as a decision
BEGINS_A_UUID = re.compile(r"[0-9A-Fa-f-]{1,36}")
SELDOM_SAID = {Outcome.EQUAL, Outcome.CANT_TELL}
MOST_NAMED = 30_000
"""Rows that a statement names one by one; both databases take a few more. So many that were ever decided as
is asked for are looked at, and no more."""
MOST_COMPARED = 10_000
"""So many with several labels are looked at, and no more, for labels that disagree: each takes a while."""
_ORDERS: dict[str, Sequence[str]] = {
    "newest": ("-pk",),
    "oldest": ("pk",),
    "priority": ("-priority", "-pk"),
    "labels": ("-n_labels", "-pk"),
}
ORDERS = tuple(_ORDERS)


@dataclass(frozen=True)
class Filters:
    """Which comparisons are wanted, and in which order; what is empty does not matter.

    Attributes:
        state: one of ``STATES``.
        decision: an outcome, or ``NOTHING``.
        disagreement: labels that count say different things.
        labeler: who has answered it, whatever became of the answer.
        text: how the UUID begins, with or without hyphens.
        since: environment steps, at least.
        order: one of ``ORDERS``.
    """

    state: str = ""
    decision: str = ""
    disagreement: bool = False
    labeler: Labeler | None = None
    text: str = ""
    since: int | None = None
    order: str = ORDERS[0]


class Matching:
    """The comparisons of an experiment that match filters, as a paginator takes them."""

    def __init__(self, experiment: Experiment, filters: Filters) -> None:
        found = _filtered(experiment, filters).order_by(*_ORDERS[filters.order])
        looked_at = list(_looked_at(experiment, filters))
        self._cut = any(len(ids) > most for ids, most in looked_at)
        if looked_at:
            found = found.filter(pk__in=set.intersection(*(set(ids[:most]) for ids, most in looked_at)))
        self._found = found[: MOST_COUNTED + 1]

    @cached_property
    def _number(self) -> int:
        return self._found.count()

    @property
    def more(self) -> bool:
        """Whether there are, or may be, more than are counted."""
        return self._cut or self._number > MOST_COUNTED

    def __len__(self) -> int:
        """Count them, up to ``MOST_COUNTED``."""
        return min(self._number, MOST_COUNTED)

    def __getitem__(self, place: slice) -> QuerySet[Comparison]:
        """Return some of them."""
        return self._found[place]

    def on(self, page: Page[Comparison]) -> QuerySet[Comparison]:
        """Return those on a page of a paginator."""
        return self[max(0, page.start_index() - 1) : page.end_index()]


def _filtered(experiment: Experiment, filters: Filters) -> QuerySet[Comparison]:
    comparisons = experiment.comparisons.all()
    if filters.state:
        comparisons = _in_state(comparisons, filters.state)
    if filters.decision == NOTHING:
        # Nothing is decided without a label, but for what is known; and no label is without a decision.
        comparisons = comparisons.alias(now=newest_decision("decision")).filter(now__isnull=True, n_labels=0)
    elif filters.decision:
        comparisons = comparisons.alias(now=newest_decision("decision")).filter(now=filters.decision)
    if filters.disagreement:
        comparisons = comparisons.alias(opinions=_opinions()).filter(n_labels__gt=1, opinions__gt=1)
    if filters.labeler is not None:
        answers = Label.objects.filter(comparison=OuterRef("pk"), labeler=filters.labeler)
        comparisons = comparisons.filter(Exists(answers))
    if filters.text:
        comparisons = comparisons.filter(uuid__range=uuids_from(filters.text))
    if filters.since is not None:
        comparisons = comparisons.filter(step__gte=filters.since)
    return comparisons


def _in_state(comparisons: QuerySet[Comparison], state: str) -> QuerySet[Comparison]:
    if state == "decided":
        return comparisons.alias(now=newest_decision("decision")).filter(now__isnull=False)
    if state not in {"waiting", "leased"}:
        return comparisons.filter(status=state)
    claims = Lease.objects.filter(live_leases(), comparison=OuterRef("pk"), purpose=Lease.Purpose.JUDGE)
    is_leased = Exists(claims)
    return comparisons.filter(is_leased if state == "leased" else ~is_leased, status=Comparison.Status.OPEN)


def _looked_at(experiment: Experiment, filters: Filters) -> Iterator[tuple[list[int], int]]:
    """Yield the comparisons to which a search is limited that would take too long among all, and how many.

    There is one more where that is not all.
    """
    if filters.decision in SELDOM_SAID:
        yield _ever_decided(experiment, filters), MOST_NAMED
    if filters.disagreement:
        yield _labeled_several_times(experiment, filters), MOST_COMPARED


def _labeled_several_times(experiment: Experiment, filters: Filters) -> list[int]:
    """Those whose labels may disagree, from the end that is listed first, and one more than are compared."""
    several = _filtered(experiment, replace(filters, disagreement=False, decision="")).filter(n_labels__gt=1)
    return list(several.order_by(*_ORDERS[filters.order]).values_list("pk", flat=True)[: MOST_COMPARED + 1])


def _ever_decided(experiment: Experiment, filters: Filters) -> list[int]:
    """Those that were ever decided so, from the end that is listed first, up to one more than are named."""
    said = Decision.objects.filter(experiment=experiment, decision=filters.decision)
    if filters.since is not None:
        said = said.filter(comparison__step__gte=filters.since)
    order = "comparison_id" if filters.order == "oldest" else "-comparison_id"
    found = said.order_by(order).values_list("comparison_id", flat=True).distinct()
    return list(found[: MOST_NAMED + 1])


def _opinions() -> Subquery:
    """How many different things the labels of a comparison say that count."""
    said = Label.objects.filter(not_undone(), comparison=OuterRef("pk"), status=Label.Status.COUNTED)
    counted = said.order_by().values("comparison").annotate(opinions=Count(label_outcome(), distinct=True))
    return Subquery(counted.values("opinions"))


def uuids_from(beginning: str) -> tuple[UUID, UUID]:
    """Return the first and the last UUID that begins so; both databases find them by the index."""
    digits = beginning.replace("-", "")[:32]
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


@dataclass(frozen=True)
class Event:
    """Something that happened to a comparison: the row that tells of it, by kind, and what was said."""

    kind: str
    at: datetime
    row: Any
    outcome: str | None = None


def history(comparison: Comparison) -> list[Event]:
    """Return what happened to a comparison, in order.

    These are its labels and their withdrawals, which were read with it, its decisions, and claims that live.
    """
    labels = list(comparison.labels.all())
    undone = [(label.undo, label) for label in labels if hasattr(label, "undo")]
    claims = comparison.leases.filter(live_leases()).select_related("labeler")
    events = [
        *(Event("label", label.created_at, label, label.verdict) for label in labels),
        *(Event("undo", undo.created_at, label, label.verdict) for undo, label in undone),
        *(Event("decision", row.created_at, row, row.decision) for row in comparison.decisions.all()),
        *(Event("lease", row.created_at, row) for row in claims),
    ]
    # Of one moment: the answer or its withdrawal first, then what became of it.
    return sorted(events, key=lambda event: (event.at, event.kind == "decision", event.row.pk))

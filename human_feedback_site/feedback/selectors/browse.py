"""Queries for the comparison browser: filtered lists, and the history of one comparison."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.paginator import Page
from django.db.models import Count, Exists, OuterRef, QuerySet, Subquery
from django.utils.functional import cached_property

from human_feedback_site.feedback.kinds import CANT_TELL
from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
)
from human_feedback_site.feedback.models.querysets import (
    live_leases,
    newest_decision,
    not_undone,
)

MOST_COUNTED = 10_000
"""Maximum number of matches counted and listed; seeing the rest requires narrower filters."""

STATES = ("waiting", "leased", "answered", "decided", "cancelled", "gold")
NOTHING = "none"  # filter value for comparisons without a decision
BEGINS_A_UUID = re.compile(r"[0-9A-Fa-f-]{1,36}")
SELDOM_SAID = {"equal", CANT_TELL}
MOST_NAMED = 30_000
"""Maximum number of IDs in one SQL statement; SQLite's own limit is slightly higher.

A filter by a rare decision checks at most this many of the comparisons that have ever had that decision.
"""
MOST_COMPARED = 10_000
"""Maximum number of comparisons checked for labels that disagree, because each check is slow."""
_ORDERS: dict[str, Sequence[str]] = {
    "newest": ("-pk",),
    "oldest": ("pk",),
    "priority": ("-priority", "-pk"),
    "labels": ("-n_labels", "-pk"),
}
ORDERS = tuple(_ORDERS)


@dataclass(frozen=True)
class Filters:
    """Filters and sort order for a list of comparisons; an empty value means no filter."""

    state: str = ""  # one of ``STATES``
    decision: str = ""  # an outcome, or ``NOTHING`` for comparisons without a decision
    disagreement: bool = False  # True for comparisons whose counted labels disagree
    # labeler who has answered the comparison, even if the answer was withdrawn
    labeler: Labeler | None = None
    text: str = ""  # UUID prefix, with or without hyphens
    since: int | None = None  # only comparisons requested at this environment step or later
    order: str = ORDERS[0]  # one of ``ORDERS``


class Matching:
    """Lazy list of an experiment's comparisons that match the filters, for Django's paginator."""

    def __init__(self, experiment: Experiment, filters: Filters) -> None:
        found = _filtered(experiment, filters).order_by(*_ORDERS[filters.order])
        candidates = list(_candidates(experiment, filters))
        self._cut = any(len(ids) > most for ids, most in candidates)
        if candidates:
            found = found.filter(pk__in=set.intersection(*(set(ids[:most]) for ids, most in candidates)))
        self._found = found[: MOST_COUNTED + 1]

    @cached_property
    def _number(self) -> int:
        return self._found.count()

    @property
    def more(self) -> bool:
        """Return True if there are, or may be, more matches than were counted."""
        return self._cut or self._number > MOST_COUNTED

    def __len__(self) -> int:
        """Return the number of matches, capped at ``MOST_COUNTED``."""
        return min(self._number, MOST_COUNTED)

    def __getitem__(self, place: slice) -> QuerySet[Comparison]:
        """Return the matches that the slice ``place`` selects."""
        return self._found[place]

    def on(self, page: Page[Comparison]) -> QuerySet[Comparison]:
        """Return the matches on one page of the paginator."""
        return self[max(0, page.start_index() - 1) : page.end_index()]


def _filtered(experiment: Experiment, filters: Filters) -> QuerySet[Comparison]:
    comparisons = experiment.comparisons.all()
    if filters.state:
        comparisons = _in_state(comparisons, filters.state)
    if filters.decision == NOTHING:
        # Only gold comparisons have a decision without a label, and each label leads to a decision.
        comparisons = comparisons.alias(now=newest_decision("decision")).filter(now__isnull=True, n_labels=0)
    elif filters.decision:
        comparisons = comparisons.alias(now=newest_decision("decision")).filter(now=filters.decision)
    if filters.disagreement:
        comparisons = comparisons.alias(opinions=_different_outcomes()).filter(n_labels__gt=1, opinions__gt=1)
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


def _candidates(experiment: Experiment, filters: Filters) -> Iterator[tuple[list[int], int]]:
    """Yield comparison IDs for each slow filter, and their limit, exceeded if there are more."""
    if filters.decision in SELDOM_SAID:
        yield _ever_decided(experiment, filters), MOST_NAMED
    if filters.disagreement:
        yield _with_several_labels(experiment, filters), MOST_COMPARED


def _with_several_labels(experiment: Experiment, filters: Filters) -> list[int]:
    """Return up to ``MOST_COMPARED`` + 1 IDs of comparisons with two or more labels, in list order."""
    several = _filtered(experiment, replace(filters, disagreement=False, decision="")).filter(n_labels__gt=1)
    return list(several.order_by(*_ORDERS[filters.order]).values_list("pk", flat=True)[: MOST_COMPARED + 1])


def _ever_decided(experiment: Experiment, filters: Filters) -> list[int]:
    """Return up to ``MOST_NAMED`` + 1 IDs of comparisons that have ever had ``filters.decision``."""
    said = Decision.objects.filter(experiment=experiment, decision=filters.decision)
    if filters.since is not None:
        said = said.filter(comparison__step__gte=filters.since)
    order = "comparison_id" if filters.order == "oldest" else "-comparison_id"
    found = said.order_by(order).values_list("comparison_id", flat=True).distinct()
    return list(found[: MOST_NAMED + 1])


def _different_outcomes() -> Subquery:
    """Return a subquery that counts the distinct outcomes among a comparison's counted labels."""
    said = Label.objects.filter(not_undone(), comparison=OuterRef("pk"), status=Label.Status.COUNTED)
    counted = said.order_by().values("comparison").annotate(opinions=Count("answer", distinct=True))
    return Subquery(counted.values("opinions"))


def uuids_from(beginning: str) -> tuple[UUID, UUID]:
    """Return the lowest and the highest UUID with the prefix ``beginning``."""
    digits = beginning.replace("-", "")[:32]
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


@dataclass(frozen=True)
class Event:
    """An event in a comparison's history."""

    kind: str  # ``label``, ``undo``, ``decision`` or ``lease``
    at: datetime
    row: Any  # the decision, the lease, or the label that was given or undone
    # outcome of the label or decision; None for a lease, or if all labels were withdrawn
    outcome: str | None = None


def history(comparison: Comparison) -> list[Event]:
    """Return the events of a comparison in chronological order."""
    labels = list(comparison.labels.all())
    undone = [(label.undo, label) for label in labels if hasattr(label, "undo")]
    claims = comparison.leases.filter(live_leases()).select_related("labeler")
    events = [
        *(Event("label", label.created_at, label, label.answer) for label in labels),
        *(Event("undo", undo.created_at, label, label.answer) for undo, label in undone),
        *(Event("decision", row.created_at, row, row.decision) for row in comparison.decisions.all()),
        *(Event("lease", row.created_at, row) for row in claims),
    ]
    # At equal times, a label or undo comes before the decision that it caused.
    return sorted(events, key=lambda event: (event.at, event.kind == "decision", event.row.pk))

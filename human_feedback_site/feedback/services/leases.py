"""Who may judge what, for how long: claims on comparisons that expire.

Labels that count plus live leases of a comparison never exceed the experiment's overlap. Whoever adds a
lease, renews one or counts a label holds the comparison's row lock while looking and writing (on SQLite every
transaction is alone), and "live" is judged by the database's clock.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Exists, F, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Now

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Labeler, Lease

_random = random.SystemRandom()
_TAKE_ATTEMPTS = 5


@dataclass(frozen=True)
class LeaseRequest:
    """What a labeler's page holds and wants."""

    count: int
    held: Sequence[UUID] = ()
    shown: UUID | None = None


@dataclass(frozen=True)
class LeaseGrant:
    """``new`` leases to fetch, ``renewed`` ones to keep, and those that were ``lost``."""

    new: Sequence[Lease] = ()
    renewed: Sequence[UUID] = ()
    lost: Sequence[UUID] = ()


def live() -> Q:
    """Leases that still hold their place."""
    return Q(released_at=None, expires_at__gt=Now())


def standing() -> Q:
    """Labels that were not undone."""
    return Q(undo=None)


def fresh_expiry() -> Combinable:
    """The moment, on the database's clock, when a lease given or renewed now ends."""
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)


def lock(comparisons: QuerySet[Comparison]) -> list[Comparison]:
    """Lock rows in the order of their ids, as everybody does who waits for locks, and return them."""
    return list(comparisons.select_for_update(no_key=True).order_by("id"))


@transaction.atomic
def lease_comparisons(experiment: Experiment, labeler: Labeler, request: LeaseRequest) -> LeaseGrant:
    """Renew what the labeler holds and claim more until there are ``request.count``.

    Live leases of the labeler that the page does not hold (it was reloaded, or the answer to its request got
    lost) are given to it again before anything new. An expired lease is renewed if nobody took its place.
    While the experiment is not running nothing is given and nothing kept.
    """
    if experiment.state != Experiment.State.RUNNING:
        return LeaseGrant(lost=list(request.held))
    kept = _renew(experiment, labeler, request)
    missing = request.count - len(kept)
    claimed = _claim(experiment, labeler, missing) if missing > 0 else []
    if not kept and not claimed:
        claimed = _take_prefetched(experiment, labeler)
    held = set(request.held)
    renewed = [lease.uuid for lease in kept if lease.uuid in held]
    return LeaseGrant(
        new=[lease for lease in kept if lease.uuid not in held] + claimed,
        renewed=renewed,
        lost=[uuid for uuid in request.held if uuid not in renewed],
    )


def _renew(experiment: Experiment, labeler: Labeler, request: LeaseRequest) -> list[Lease]:
    """Extend the leases the page holds, and up to ``request.count`` live ones that it lost sight of."""
    own = Lease.objects.filter(labeler=labeler, comparison__experiment=experiment, released_at=None)
    wanted = list(own.filter(Q(uuid__in=request.held) | live()).order_by("-shown", "id"))
    locked = lock(Comparison.objects.filter(pk__in={lease.comparison_id for lease in wanted}))
    taken = Counter(comparison for comparison, who in _places(locked) if who != labeler.pk)
    with_room = {row.pk: row for row in locked if _has_room(row, taken[row.pk], experiment)}
    newest: dict[int, Lease] = {}  # one place for each comparison
    for lease in wanted:
        if lease.comparison_id in with_room:
            lease.comparison = with_room[lease.comparison_id]
            newest[lease.comparison_id] = lease
    held = [lease for lease in newest.values() if lease.uuid in request.held]
    unseen = [lease for lease in newest.values() if lease.uuid not in request.held]
    kept = [*held, *unseen[: max(0, request.count - len(held))]]
    _extend(kept, shown=request.shown)
    return kept


def _extend(leases: Sequence[Lease], *, shown: UUID | None) -> None:
    """Let leases end later, unless an answer released them a moment ago, and note which is on screen."""
    Lease.objects.filter(pk__in=[lease.pk for lease in leases], released_at=None).update(
        expires_at=fresh_expiry()
    )
    newly_shown = [lease.pk for lease in leases if lease.uuid == shown and not lease.shown]
    if newly_shown:
        Lease.objects.filter(pk__in=newly_shown).update(shown=True)


def _claim(experiment: Experiment, labeler: Labeler, count: int) -> list[Lease]:
    """Claim up to ``count`` comparisons with a free place, in the order in which they should be judged."""
    leases = Lease.objects.filter(live(), comparison=OuterRef("pk"))
    queue = (
        _unseen_by(experiment, labeler)
        .alias(places=_count(leases, "comparison"))
        .filter(places__lt=experiment.overlap - F("n_labels"))
        .order_by("-priority", "-n_labels", "-id")
    )
    claimed: list[Lease] = []
    while len(claimed) < count:
        batch = queue[: count - len(claimed)].select_for_update(no_key=True, of=("self",), skip_locked=True)
        rows = list(batch)
        if not rows:
            break
        claimed += [grant(row, labeler) for row in _still_free(rows, experiment, labeler)]
    return claimed


def _still_free(rows: Sequence[Comparison], experiment: Experiment, labeler: Labeler) -> list[Comparison]:
    """Keep the locked rows that are free for the labeler.

    The queue was read before its rows were locked: a place may have gone in between, and only now is it
    certain.
    """
    places = _places(rows)
    taken = Counter(comparison for comparison, _ in places)
    judged = Label.objects.filter(standing(), comparison__in=rows, labeler=labeler)
    seen = {comparison for comparison, who in places if who == labeler.pk}
    seen |= set(judged.values_list("comparison", flat=True))
    return [row for row in rows if row.pk not in seen and _has_room(row, taken[row.pk], experiment)]


def _take_prefetched(experiment: Experiment, labeler: Labeler) -> list[Lease]:
    """Take over one pair that another labeler has only fetched ahead, leaving that labeler at least one."""
    useful = Lease.objects.filter(
        live(), comparison__experiment=experiment, comparison__status=Comparison.Status.OPEN
    )
    spare = (
        useful.filter(shown=False, comparison__in=_unseen_by(experiment, labeler))
        .alias(held=_count(useful.filter(labeler=OuterRef("labeler")), "labeler"))
        .filter(held__gt=1)
        .order_by("-held", "-id")
    )
    for lease in spare[:_TAKE_ATTEMPTS]:
        rows = Comparison.objects.filter(pk=lease.comparison_id, status=Comparison.Status.OPEN)
        for comparison in rows.select_for_update(no_key=True, skip_locked=True):
            if Lease.objects.filter(live(), pk=lease.pk, shown=False).update(expires_at=Now()):
                return [grant(comparison, labeler)]
    return []


def grant(
    comparison: Comparison, labeler: Labeler, *, swapped: bool | None = None, shown: bool = False
) -> Lease:
    """Give ``labeler`` a place on a locked comparison that has one; the sides are drawn unless given."""
    if swapped is None:
        swapped = bool(_random.getrandbits(1))
    return Lease.objects.create(
        comparison=comparison, labeler=labeler, swapped=swapped, shown=shown, expires_at=fresh_expiry()
    )


def _places(comparisons: Sequence[Comparison]) -> list[tuple[int, int]]:
    """Return (comparison, labeler) of each live lease."""
    leases = Lease.objects.filter(live(), comparison__in=comparisons)
    return list(leases.values_list("comparison", "labeler"))


def _has_room(comparison: Comparison, taken: int, experiment: Experiment) -> bool:
    is_open = comparison.status == Comparison.Status.OPEN
    return is_open and comparison.n_labels + taken < experiment.overlap


def _unseen_by(experiment: Experiment, labeler: Labeler) -> QuerySet[Comparison]:
    """Open comparisons that the labeler neither has judged nor holds."""
    judged = Label.objects.filter(standing(), comparison=OuterRef("pk"), labeler=labeler)
    holding = Lease.objects.filter(live(), comparison=OuterRef("pk"), labeler=labeler)
    return Comparison.objects.filter(
        ~Exists(judged), ~Exists(holding), experiment=experiment, status=Comparison.Status.OPEN
    )


def _count(rows: QuerySet[Lease], group: str) -> Combinable:
    """Return the number of ``rows``, which refer to the outer query and share the value of ``group``."""
    counts = rows.order_by().values(group).annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(counts, output_field=IntegerField()), 0)

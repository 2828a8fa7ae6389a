"""Who may judge what, for how long: leases of comparisons, which expire.

Labels that count plus live leases of a comparison never exceed the labels it wants, and a free place belongs
to a label that waits for one before it is leased. Whoever adds a lease, brings an expired one back or counts
a label holds the comparison's row lock while looking and writing (on SQLite every transaction is alone), and
"live" is judged by the database's clock.

Nor does a labeler hold more than it may because it asks many times at once: its requests take turns.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Now

from human_feedback_site.feedback.errors import NoConsentError
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Lease,
    Participation,
)
from human_feedback_site.feedback.models.querysets import (
    judgments,
    live_leases,
    unanswered_leases,
    waiting_labels,
)
from human_feedback_site.feedback.queue.candidates import Candidate, find_candidates
from human_feedback_site.feedback.queue.participants import Participant
from human_feedback_site.feedback.queue.sql import Places, count_places, leases_held, lock_free, wait_for_turn

_random = random.SystemRandom()
_NO_LEASE = UUID(int=0)
# A lease this close to its end is brought back as an expired one is: it may be over before the commit.
_NEARLY_OVER = timedelta(seconds=10)
_MORE_ROUNDS = 2  # for somebody who has nothing in hand, because others were faster
TAKEN_OVER = 3
"""Pairs at most that a labeler without any is given of what others have fetched ahead."""
_Purpose = Lease.Purpose


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

    @property
    def is_empty(self) -> bool:
        """Whether the labeler has nothing to judge."""
        return not self.new and not self.renewed


@transaction.atomic
def lease_comparisons(who: Participant, request: LeaseRequest) -> LeaseGrant:
    """Renew what the labeler holds and lease more until there are ``request.count``.

    Live leases of the labeler that the page does not hold (it was reloaded, or the answer to its request got
    lost) are given to it again before anything new. An expired lease is renewed if nobody took its place.
    While the experiment is not running, or where the labeler was stopped or has given all the answers that
    were wanted of it, nothing is given and nothing kept. Raises :class:`NoConsentError`.
    """
    if not who.consented:
        raise NoConsentError("Agree to the experiment's consent text first, on its page: it is shown there.")
    if who.notice in {Participation.Notice.STOPPED, Participation.Notice.DONE}:
        expire_leases(who.labeler, who.experiment)
        return LeaseGrant(lost=list(request.held))
    if who.wanted is not None:
        request = replace(request, count=min(request.count, who.wanted - who.answered))
    grant = LeaseGrant(lost=list(request.held))
    if who.state == Experiment.State.RUNNING:
        grant = _grant_work(who, request)
    if grant.is_empty != who.empty:
        since = Now() if grant.is_empty else None
        Participation.objects.filter(pk=who.participation).update(empty_since=since)
    return grant


def _grant_work(who: Participant, request: LeaseRequest) -> LeaseGrant:
    """Renew and lease for a labeler who may have work."""
    wait_for_turn(who.participation)
    held = list(dict.fromkeys(request.held))
    promised = _promised(who)
    live = _live_of(who, held)
    missing = set(held) - {lease.uuid for lease in live}
    expired = _lock_expired(who, missing, request.shown) if missing else []
    found = find_candidates(
        who, request.count - len(held), holds=len(held), but=[lease.comparison_id for lease in expired]
    )
    kept = _renew(who, request, live, expired[: _room(who, request.count - len(live), promised)])
    renewed = [uuid for uuid in held if uuid in kept]
    new = [lease for uuid, lease in kept.items() if uuid not in renewed]
    new = new[: max(0, request.count - len(renewed))]
    promised += sum(lease.uuid in kept for lease in expired)
    room = _room(who, request.count, promised)
    new += _grant_all(who, found.choose(min(request.count - len(renewed) - len(new), room)))
    for _ in range(_MORE_ROUNDS):
        if renewed or new or not room:
            break
        if found.is_all:
            new = _take_prefetched(who, min(room, TAKEN_OVER))
            break
        found = find_candidates(who, request.count)
        room = _room(who, request.count, _promised(who))
        new = _grant_all(who, found.choose(room))
    return LeaseGrant(new, renewed, lost=[uuid for uuid in request.held if uuid not in renewed])


def _room(who: Participant, count: int, promised: int) -> int:
    """Return how many of ``count`` pairs more the labeler may answer, whatever it does in this moment."""
    return max(0, count if who.wanted is None else min(count, who.wanted - promised))


def _promised(who: Participant) -> int:
    """Return how many answers of the labeler's part there are, and live leases, in one moment.

    It matters only where an invitation asks for a number of answers.
    """
    if who.wanted is None:
        return 0
    live = _held_by(who).filter(_live_for_a_while()).order_by().values("labeler")
    counted = live.annotate(count=Count("pk")).values("count")
    own = Participation.objects.filter(pk=who.participation)
    answered = F("answers") - F("undone") - Coalesce("elsewhere", 0)
    return int(own.values_list(answered + Coalesce(Subquery(counted), 0), flat=True).get())


def _live_for_a_while() -> Q:
    """Select leases that are not answered, and not nearly over."""
    return unanswered_leases() & Q(expires_at__gt=Now() + _NEARLY_OVER)


def _held_by(who: Participant) -> QuerySet[Lease]:
    """Return leases of a labeler whose comparisons are still asked, live or not."""
    is_asked = (
        Q(purpose=_Purpose.JUDGE, comparison__status=Comparison.Status.OPEN)
        | Q(purpose=_Purpose.GOLD, comparison__status=Comparison.Status.GOLD)
        | Q(purpose=_Purpose.REPEAT) & ~Q(comparison__status=Comparison.Status.CANCELLED)
    )
    return Lease.objects.filter(is_asked, labeler=who.labeler, comparison__experiment=who.experiment)


def _live_of(who: Participant, held: Sequence[UUID]) -> list[Lease]:
    """Return the live leases of a labeler in the order in which they should be kept.

    First are those that its page holds, then what is on screen, then the oldest.
    """
    found = leases_held(who.labeler, who.experiment, _NEARLY_OVER.total_seconds())
    return sorted(found, key=lambda lease: (lease.uuid not in held, not lease.shown, lease.pk))


def _lock_expired(who: Participant, uuids: Iterable[UUID], shown: UUID | None) -> list[Lease]:
    """Return expired leases of a labeler, one of each pair, whose places nobody has taken.

    Their comparisons are locked, in the order of their ids, as everybody does who waits.
    """
    expired = _held_by(who).filter(unanswered_leases(), uuid__in=uuids, expires_at__lte=Now() + _NEARLY_OVER)
    locked = expired.select_related("comparison").select_for_update(of=("comparison",), no_key=True)
    newest = {lease.comparison_id: lease for lease in sorted(locked.order_by("comparison"), key=_number)}
    if not newest:
        return []
    places = count_places(list(newest), who.labeler)
    return [
        lease
        for lease in sorted(newest.values(), key=lambda lease: (lease.uuid != shown, lease.pk))
        if lease.purpose != _Purpose.JUDGE or places[lease.comparison_id].has_free(lease.comparison)
    ]


def _number(lease: Lease) -> int:
    return lease.pk


def _renew(
    who: Participant, request: LeaseRequest, live: Sequence[Lease], expired: Sequence[Lease]
) -> dict[UUID, Lease]:
    """Extend live leases, and bring back expired ones whose comparisons are locked; return them by UUID.

    Those of the live ones that the page lost sight of are among them, up to the number it asks for.
    """
    live = live[: max(request.count, len(set(request.held)))]
    chosen = [*live, *expired]
    if not chosen:
        return {}
    # Somebody else may have ended a live one since it was found.
    may_end = Q(pk__in=[lease.pk for lease in live], expires_at__gt=Now() + _NEARLY_OVER)
    leases = Lease.objects.filter(may_end | Q(pk__in=[lease.pk for lease in expired]), unanswered_leases())
    is_shown = Case(When(uuid=request.shown or _NO_LEASE, then=Value(True)), default="shown")
    extended = leases.update(
        expires_at=fresh_expiry(), shown=is_shown, prompt_version=who.prompt_version, invite=who.invite
    )
    kept = {lease.pk: lease for lease in chosen}
    if extended < len(chosen):
        still = Lease.objects.filter(_live_for_a_while(), pk__in=kept)
        kept = {pk: kept[pk] for pk in still.values_list("pk", flat=True)}
    return {lease.uuid: lease for _, lease in sorted(kept.items())}


def _grant_all(who: Participant, candidates: Sequence[Candidate]) -> list[Lease]:
    """Lease to the labeler each of these that still has a place for it; the sides are drawn.

    The queue was read before its rows were locked: a place may have gone in between. Only now is it certain.
    """
    if not candidates:
        return []
    places = count_places([each.comparison.pk for each in candidates], who.labeler)
    granted = [each for each in candidates if _may_have(each, places[each.comparison.pk])]
    leases = [
        Lease(
            comparison=each.comparison,
            labeler_id=who.labeler,
            swapped=bool(_random.getrandbits(1)),
            purpose=each.purpose,
            prompt_version=who.prompt_version,
            invite_id=who.invite,
            expires_at=fresh_expiry(),
        )
        for each in granted
    ]
    return Lease.objects.bulk_create(leases)


def _may_have(candidate: Candidate, places: Places) -> bool:
    """Say whether a labeler may be given a pair: only to judge it takes one of its places."""
    if candidate.purpose == _Purpose.JUDGE:
        return places.has_free(candidate.comparison)
    return not places.is_held


def _take_prefetched(who: Participant, most: int) -> list[Lease]:
    """Take over what other labelers have only fetched ahead: at most the newer half of what each holds."""
    comparison = {"comparison": OuterRef("comparison")}
    judged = judgments().filter(labeler=who.labeler, **comparison)
    held = Lease.objects.filter(live_leases(), labeler=who.labeler, **comparison)
    same_holder = Lease.objects.filter(
        ~Q(Exists(Label.objects.filter(lease=OuterRef("pk")))),
        labeler=OuterRef("labeler"),
        expires_at__gt=Now(),
        comparison__status=Comparison.Status.OPEN,
        comparison__experiment=who.experiment,
    ).order_by()
    older_or_newer = Case(When(pk__lt=OuterRef("pk"), then=Value(1)), default=Value(-1))
    balance = same_holder.values("labeler").annotate(sum=Sum(older_or_newer)).values("sum")
    prefetched = Lease.objects.select_related("comparison").filter(
        live_leases(),
        ~Exists(judged),
        ~Exists(held),
        ~Exists(waiting_labels().filter(**comparison)),
        shown=False,
        purpose=_Purpose.JUDGE,
        comparison__status=Comparison.Status.OPEN,
        comparison__experiment=who.experiment,
    )
    newer_half = prefetched.annotate(balance=Subquery(balance)).filter(balance__gte=0).order_by("-pk")
    taken = list(newer_half.select_for_update(of=("comparison",), no_key=True, skip_locked=True)[:most])
    still_unseen = Lease.objects.filter(pk__in=[lease.pk for lease in taken], shown=False)
    still_unseen.filter(expires_at__gt=Now()).update(expires_at=Now())
    # Two may have given up the same pair.
    pairs = {lease.comparison_id: lease.comparison for lease in taken}
    return _grant_all(who, [Candidate(pair) for pair in pairs.values()])


@transaction.atomic
def has_work(who: Participant) -> bool:
    """Say whether there is a pair that the labeler holds or could have."""
    held = Lease.objects.filter(
        live_leases(),
        labeler=who.labeler,
        comparison__experiment=who.experiment,
        purpose=_Purpose.JUDGE,
    )
    return held.exists() or bool(lock_free(who.experiment, who.labeler, 1))


def grant_again(comparison: Comparison, label: Label, invite: int | None) -> Lease:
    """Give back to a labeler, on screen at once, the place on a locked comparison that its label leaves."""
    return Lease.objects.create(
        comparison=comparison,
        labeler_id=label.labeler_id,
        swapped=label.swapped,
        purpose=label.lease.purpose,
        invite_id=invite,
        shown=True,
        prompt_version=comparison.experiment.prompt_version,
        expires_at=fresh_expiry(),
    )


def fresh_expiry() -> Combinable:
    """Return the moment, on the database's clock, when a lease given or renewed now ends."""
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)


def expire_leases(labeler: int, experiment: int) -> None:
    """Give what a labeler holds in an experiment to others."""
    own = Lease.objects.filter(labeler=labeler, comparison__experiment=experiment, expires_at__gt=Now())
    own.update(expires_at=Now())

"""Granting, renewing and expiring leases: labelers' temporary rights to judge comparisons.

A comparison has one slot per label it wants. A lease is only granted or revived while its counted labels and
live leases together are fewer than its slots, so that most answers count. To ensure this, the code holds the
comparison's row lock while it checks and writes. SQLite needs no row lock because it runs one transaction at
a time. A lease is live until ``expires_at``, by the database's clock.

Concurrent requests from one labeler run one at a time, so together they can't exceed the number of answers
that the labeler's invitation asks for.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Now

from human_feedback_site.feedback.errors import NoConsentError
from human_feedback_site.feedback.kinds import KINDS, PAIR
from human_feedback_site.feedback.models import Comparison, Experiment, Label, Labeler, Lease, Participation
from human_feedback_site.feedback.models.querysets import (
    judgments,
    live_leases,
    not_undone,
    since_deletion,
    unanswered_leases,
)
from human_feedback_site.feedback.queue.attention_checks import Check, due_check, find_check_pair
from human_feedback_site.feedback.queue.participants import Participant
from human_feedback_site.feedback.queue.sql import leases_held, lock_free, still_free, wait_for_turn
from human_feedback_site.feedback.queue.study import turns_of

_random = random.SystemRandom()
_NO_LEASE = UUID(int=0)
# A lease this close to its end is treated as expired, because it may expire before the commit.
_NEARLY_OVER = timedelta(seconds=10)
_MORE_ROUNDS = 2  # extra searches if other labelers took every comparison found
TAKEN_OVER = 3
"""Maximum number of prefetched leases taken from other labelers for a labeler who has no leases."""
_Purpose = Lease.Purpose


@dataclass(frozen=True)
class Candidate:
    """A comparison that may be leased, and the purpose of the lease."""

    comparison: Comparison
    purpose: str = Lease.Purpose.JUDGE
    needs_slot: bool = True  # False for a model's answer that is only compared with people's


@dataclass(frozen=True)
class Candidates:
    """Result of :func:`find_candidates` for one labeler."""

    asked: int  # number of comparisons requested
    # up to ``asked`` comparisons from the queue, in judging order; their rows are locked
    queue: Sequence[Comparison]
    # the attention check that is due, and its comparison; None if no check is due or available
    check: tuple[Check, Comparison] | None

    @property
    def is_all(self) -> bool:
        """True if the queue has no further comparisons for the labeler."""
        return len(self.queue) < self.asked

    def choose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates, including the check unless its position is already filled.

        If ``count`` is less than ``asked``, the first ``asked - count`` positions are considered filled by
        leases that the labeler already has. The check's index is reduced by that number.
        """
        count = max(0, min(count, self.asked))
        queue = [Candidate(comparison) for comparison in self.queue[:count]]
        if self.check is not None:
            check, comparison = self.check
            place = check.place - (self.asked - count)
            if place >= 0:
                return [*queue[:place], Candidate(comparison, check.purpose), *queue[place : count - 1]]
        return queue


def find_candidates(
    who: Participant, count: int, kinds: Sequence[str], *, holds: int = 0, but: Sequence[int] = ()
) -> Candidates:
    """Find up to ``count`` comparisons for a labeler; lock those that come from the queue.

    Args:
        who: the labeler.
        count: number of comparisons wanted; 0 or less returns no candidates.
        kinds: kinds of questions that the labeler's page can show.
        holds: number of leases the labeler already has; new leases get the positions after them.
        but: IDs of comparisons to exclude.
    """
    if count <= 0:
        return Candidates(0, (), None)
    ordinals = range(who.judged + holds, who.judged + holds + count)
    turns = turns_of(who, ordinals) if {*kinds} >= {*KINDS} else ()
    found = [
        comparison
        for kind, places in groupby(turns)
        for comparison in lock_free(who.experiment, who.labeler, len(list(places)), [kind], who.shares)
    ]
    found = found or lock_free(who.experiment, who.labeler, count + len(but), kinds, who.shares)
    queue = [comparison for comparison in found if comparison.pk not in but][:count]
    check = due_check(who, ordinals)
    comparison = None
    if check:
        comparison = find_check_pair(who, check.purpose, [turns[check.place]] if turns else kinds, but)
    return Candidates(count, queue, (check, comparison) if check and comparison else None)


@dataclass(frozen=True)
class LeaseRequest:
    """A labeling page's request for leases."""

    count: int  # number of leases the page wants to have in total
    kinds: Sequence[str] = (PAIR.name,)  # kinds of questions that the page can show
    held: Sequence[UUID] = ()  # UUIDs of the leases the page has
    shown: UUID | None = None  # UUID of the lease on screen, or None


@dataclass(frozen=True)
class LeaseGrant:
    """Response to a :class:`LeaseRequest`."""

    new: Sequence[Lease] = ()  # leases the page doesn't have yet
    renewed: Sequence[UUID] = ()  # UUIDs of the page's leases that were extended
    lost: Sequence[UUID] = ()  # UUIDs of leases that the page must drop

    @property
    def is_empty(self) -> bool:
        """True if the labeler has nothing to judge."""
        return not self.new and not self.renewed


@transaction.atomic
def lease_comparisons(who: Participant, request: LeaseRequest) -> LeaseGrant:
    """Renew the labeler's leases, and grant new ones until the page has ``request.count`` leases.

    Live leases that the page lacks (after a reload or a lost response) are returned in ``new`` before any new
    leases are granted. An expired lease is renewed if its slot is still free. Nothing is granted or renewed
    if the experiment isn't running, the labeler was stopped, or the labeler has given all the answers that
    the invitation asks for. This function also updates the participation's ``empty_since``, the time when the
    labeler ran out of work.

    Raises :class:`NoConsentError` if the labeler has yet to agree to the experiment's consent text.
    """
    if not who.consented:
        raise NoConsentError("Agree to the consent text first; the experiment's labeling page shows it.")
    if who.notice in {Participation.Notice.STOPPED, Participation.Notice.DONE}:
        expire_leases(who.labeler, who.experiment)
        return LeaseGrant(lost=list(request.held))
    if who.wanted is not None:
        request = replace(request, count=min(request.count, who.wanted - who.answered))
    grant = LeaseGrant(lost=list(request.held))
    if who.state == Experiment.State.RUNNING:
        if who.share is not None:
            stale = Q(models_seen_at=None) | Q(models_seen_at__lt=Now() - timedelta(minutes=1))
            own = Experiment.objects.filter(stale | ~Q(models_share=who.share), pk=who.experiment)
            own.update(models_share=who.share, models_seen_at=Now())
        grant = _grant_work(who, request)
    if grant.is_empty != who.empty:
        since = Now() if grant.is_empty else None
        Participation.objects.filter(pk=who.participation).update(empty_since=since)
    return grant


def _grant_work(who: Participant, request: LeaseRequest) -> LeaseGrant:
    wait_for_turn(who.participation)
    held = list(dict.fromkeys(request.held))
    promised = _promised(who)
    live = [lease for lease in _live_of(who, held) if lease.comparison.kind in request.kinds]
    missing = set(held) - {lease.uuid for lease in live}
    expired = _lock_expired(who, missing, request.shown) if missing else []
    but = [lease.comparison_id for lease in expired]
    found = find_candidates(who, request.count - len(held), request.kinds, holds=len(held), but=but)
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
            if who.share is None:
                new = _take_prefetched(who, min(room, TAKEN_OVER), request.kinds)
            else:
                new = _grant_all(who, _answered_by_people(who, min(room, request.count), request.kinds))
            break
        found = find_candidates(who, request.count, request.kinds)
        room = _room(who, request.count, _promised(who))
        new = _grant_all(who, found.choose(room))
    return LeaseGrant(new, renewed, lost=[uuid for uuid in request.held if uuid not in renewed])


def _room(who: Participant, count: int, promised: int) -> int:
    """Return how many leases the answer limit still allows, at most ``count``, given :func:`_promised`."""
    return max(0, count if who.wanted is None else min(count, who.wanted - promised))


def _promised(who: Participant) -> int:
    """Return the labeler's answer count under the current invitation plus their live lease count.

    Counts both in one statement, so that a concurrent answer isn't missed or counted twice. Returns 0 if the
    invitation has no limit, since the number isn't needed then.
    """
    if who.wanted is None:
        return 0
    live = _held_by(who).filter(_live_for_a_while()).order_by().values("labeler")
    counted = live.annotate(count=Count("pk")).values("count")
    own = Participation.objects.filter(pk=who.participation)
    answered = F("answers") - F("undone") - Coalesce("elsewhere", 0)
    return int(own.values_list(answered + Coalesce(Subquery(counted), 0), flat=True).get())


def _live_for_a_while() -> Q:
    return Q(expires_at__gt=Now() + _NEARLY_OVER)


def _held_by(who: Participant) -> QuerySet[Lease]:
    """Return the labeler's leases, live or expired, on comparisons that can still be answered."""
    is_asked = (
        Q(purpose=_Purpose.JUDGE, comparison__status=Comparison.Status.OPEN)
        | Q(purpose=_Purpose.GOLD, comparison__status=Comparison.Status.GOLD)
        | Q(purpose=_Purpose.REPEAT) & ~Q(comparison__status=Comparison.Status.CANCELLED)
    )
    return Lease.objects.filter(is_asked, labeler=who.labeler, comparison__experiment=who.experiment)


def _live_of(who: Participant, held: Sequence[UUID]) -> list[Lease]:
    """Return the labeler's live leases in order of priority: on the page, shown, older."""
    found = leases_held(who.labeler, who.experiment, _NEARLY_OVER.total_seconds())
    return sorted(found, key=lambda lease: (lease.uuid not in held, not lease.shown, lease.pk))


def _lock_expired(who: Participant, uuids: Iterable[UUID], shown: UUID | None) -> list[Lease]:
    """Return the labeler's expired leases whose slots are still free, at most one per comparison.

    Also locks the leases' comparisons. To avoid deadlocks, all code that waits for these locks takes them in
    ID order.
    """
    expired = _held_by(who).filter(unanswered_leases(), uuid__in=uuids, expires_at__lte=Now() + _NEARLY_OVER)
    locked = expired.select_related("comparison").select_for_update(of=("comparison",), no_key=True)
    found = sorted(locked.order_by("comparison"), key=lambda lease: lease.pk)
    newest = {lease.comparison_id: lease for lease in found}
    if not newest:
        return []
    free = still_free(newest, who.labeler)
    return [
        lease
        for lease in sorted(newest.values(), key=lambda lease: (lease.uuid != shown, lease.pk))
        if lease.purpose != _Purpose.JUDGE or lease.comparison_id in free
    ]


def _renew(
    who: Participant, request: LeaseRequest, live: Sequence[Lease], expired: Sequence[Lease]
) -> dict[UUID, Lease]:
    """Extend live leases, and revive expired ones whose comparisons are locked; return them by UUID."""
    live = live[: max(request.count, len(set(request.held)))]
    chosen = [*live, *expired]
    if not chosen:
        return {}
    # Another request may have ended a live lease since it was read.
    may_end = _live_for_a_while() & Q(pk__in=[lease.pk for lease in live])
    leases = Lease.objects.filter(may_end | Q(pk__in=[lease.pk for lease in expired]))
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
    """Grant leases on the candidates that still have a free slot, with sides swapped at random.

    The queue was read before its rows were locked, so a slot may have been taken in between. Attention checks
    need no slot.
    """
    if not candidates:
        return []
    free = still_free((each.comparison.pk for each in candidates), who.labeler)
    granted = [
        each
        for each in candidates
        if each.purpose != _Purpose.JUDGE or not each.needs_slot or each.comparison.pk in free
    ]
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


def _answered_by_people(who: Participant, most: int, kinds: Sequence[str]) -> list[Candidate]:
    """Find up to ``most`` comparisons that people have decided, for a model to answer too.

    The model's answers count for nothing, but show how often it agrees.
    """
    labels = Label.objects.filter(not_undone(), comparison=OuterRef("pk"))
    people = labels.filter(status=Label.Status.COUNTED).exclude(labeler__kind=Labeler.Kind.MODEL)
    held = Lease.objects.filter(live_leases(), comparison=OuterRef("pk"), labeler=who.labeler)
    found = Comparison.objects.filter(
        Exists(people),
        ~Exists(labels.filter(labeler=who.labeler)),
        ~Exists(held),
        since_deletion(),
        experiment=who.experiment,
        status=Comparison.Status.ANSWERED,
        clips_missing=False,
        kind__in=kinds,
    )
    return [Candidate(each, needs_slot=False) for each in found.order_by("-pk")[:most]]


def _take_prefetched(who: Participant, most: int, kinds: Sequence[str]) -> list[Lease]:
    """Lease up to ``most`` comparisons that other labelers' pages have prefetched but not yet shown.

    This expires the other labelers' leases on these comparisons, but every labeler keeps at least the older
    half of their leases.
    """
    comparison = {"comparison": OuterRef("comparison")}
    judged = judgments().filter(labeler=who.labeler, **comparison)
    held = Lease.objects.filter(live_leases(), labeler=who.labeler, **comparison)
    same_holder = Lease.objects.filter(
        live_leases(),
        labeler=OuterRef("labeler"),
        comparison__status=Comparison.Status.OPEN,
        comparison__experiment=who.experiment,
    ).order_by()
    older_or_newer = Case(When(pk__lt=OuterRef("pk"), then=Value(1)), default=Value(-1))
    balance = same_holder.values("labeler").annotate(sum=Sum(older_or_newer)).values("sum")
    people = Lease.objects.exclude(labeler__kind=Labeler.Kind.MODEL)
    prefetched = people.select_related("comparison").filter(
        live_leases(),
        ~Exists(judged),
        ~Exists(held),
        shown=False,
        purpose=_Purpose.JUDGE,
        comparison__status=Comparison.Status.OPEN,
        comparison__experiment=who.experiment,
        comparison__kind__in=kinds,
    )
    newer_half = prefetched.annotate(balance=Subquery(balance)).filter(balance__gte=0).order_by("-pk")
    taken = list(newer_half.select_for_update(of=("comparison",), no_key=True, skip_locked=True)[:most])
    end_leases(Lease.objects.filter(pk__in=[lease.pk for lease in taken], shown=False))
    # Two labelers may have had leases on the same comparison.
    questions = {lease.comparison_id: lease.comparison for lease in taken}
    return _grant_all(who, [Candidate(each) for each in questions.values()])


@transaction.atomic
def has_work(who: Participant) -> bool:
    """Return True if the labeler has a live lease to judge or could get one from the queue."""
    held = Lease.objects.filter(
        live_leases(),
        labeler=who.labeler,
        comparison__experiment=who.experiment,
        purpose=_Purpose.JUDGE,
    )
    return held.exists() or bool(lock_free(who.experiment, who.labeler, 1, tuple(KINDS), who.shares))


def grant_again(comparison: Comparison, label: Label, invite: int | None) -> Lease:
    """Give a withdrawn label's slot back to its labeler, with the clips on the same sides."""
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
    """Return an SQL expression for the expiry time of a lease that is granted or renewed now."""
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)


def expire_leases(labeler: int, experiment: int) -> None:
    """End the labeler's live leases in an experiment, so that other labelers can get the comparisons."""
    end_leases(Lease.objects.filter(labeler=labeler, comparison__experiment=experiment))


def end_leases(leases: QuerySet[Lease]) -> int:
    """End those of the leases that are live; return how many were."""
    return leases.filter(live_leases()).update(expires_at=Now())

"""Who may judge what, for how long: claims on comparisons that expire.

Labels that count plus live leases of a comparison never exceed the labels it wants. Whoever adds a lease,
brings an expired one back or counts a label holds the comparison's row lock while looking and writing (on
SQLite every transaction is alone), and "live" is judged by the database's clock.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from human_feedback_site.feedback.errors import NoConsentError
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
)
from human_feedback_site.feedback.services.checks import due_check, pick_check
from human_feedback_site.feedback.services.claims import Participant
from human_feedback_site.feedback.services.sql import key, rows, run, seconds, uuid_of

_random = random.SystemRandom()
# A lease this close to its end is brought back as an expired one is: it may be over before the commit.
_NEARLY_OVER_SECONDS = 10.0
_ATTEMPTS = 5
_NO_LEASE = UUID(int=0)


@dataclass(frozen=True)
class LeaseRequest:
    """What a labeler's page holds and wants."""

    count: int
    held: Sequence[UUID] = ()
    shown: UUID | None = None


@dataclass(frozen=True)
class Pair:
    """A comparison as it may be leased."""

    comparison: int
    uuid: UUID
    first_key: str
    second_key: str
    purpose: str = Lease.Purpose.JUDGE

    @classmethod
    def of(cls, row: Sequence[Any], purpose: str = Lease.Purpose.JUDGE) -> "Pair":
        """Return what a statement returned as id, UUID and clips of a comparison."""
        comparison, uuid, first_key, second_key = row
        return cls(comparison, uuid_of(uuid), first_key, second_key, purpose)


@dataclass(frozen=True)
class Offer:
    """A lease as its labeler sees it: a pair, and whether the second of it is shown on the left."""

    uuid: UUID
    comparison: UUID
    first_key: str
    second_key: str
    swapped: bool

    @classmethod
    def of(cls, lease: Lease) -> "Offer":
        """Return what is offered by a lease."""
        pair = lease.comparison
        return cls(lease.uuid, pair.uuid, pair.first_key, pair.second_key, lease.swapped)


@dataclass(frozen=True)
class LeaseGrant:
    """``new`` leases to fetch, ``renewed`` ones to keep, and those that were ``lost``."""

    new: Sequence[Offer] = ()
    renewed: Sequence[UUID] = ()
    lost: Sequence[UUID] = ()


def live() -> Q:
    """Leases that are neither answered nor expired; only a lease to judge takes a place."""
    return unanswered() & Q(expires_at__gt=Now())


def unanswered() -> Q:
    """Leases without an answer; one under an older lease of the same pair ends the newer one, too."""
    answers = Label.objects.filter(
        Q(lease=OuterRef("pk")) | Q(created_at__gte=OuterRef("created_at")),
        comparison=OuterRef("comparison"),
        labeler=OuterRef("labeler"),
    )
    return ~Q(Exists(answers))


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
def lease_comparisons(who: Participant, request: LeaseRequest) -> LeaseGrant:
    """Renew what the labeler holds and claim more until there are ``request.count``.

    Live leases of the labeler that the page does not hold (it was reloaded, or the answer to its request got
    lost) are given to it again before anything new. An expired lease is renewed if nobody took its place.
    While the experiment is not running, or where the labeler was stopped or has given all the answers that
    were wanted of it, nothing is given and nothing kept. Raises :class:`NoConsentError`.
    """
    if not who.consented:
        raise NoConsentError("Agree to the experiment's consent text first, on its page: it is shown there.")
    if who.notice in {"stopped", "done"}:
        expire_leases(who.labeler, who.experiment)
        return LeaseGrant(lost=list(request.held))
    if who.wanted is not None:
        request = replace(request, count=min(request.count, who.wanted - who.answered))
    running = who.state == Experiment.State.RUNNING
    given = _give(who, request) if running else LeaseGrant(lost=list(request.held))
    empty = not given.new and not given.renewed
    if empty != who.empty:
        since = Now() if empty else None
        Participation.objects.filter(pk=who.participation).update(empty_since=since)
    return given


def _give(who: Participant, request: LeaseRequest) -> LeaseGrant:
    kept = _renew(who, request)
    renewed = [offer.uuid for offer in kept if offer.uuid in request.held]
    forgotten = [uuid for uuid in request.held if uuid not in renewed]
    if forgotten:
        renewed += _bring_back(who, forgotten, request.shown)
    unseen = [offer for offer in kept if offer.uuid not in request.held]
    new = unseen[: max(0, request.count - len(renewed))]
    missing = request.count - len(renewed) - len(new)
    if missing > 0:
        new += _claim(who, missing, held=len(renewed) + len(new))
    if not renewed and not new:
        new += _take_prefetched(who)
    # In the order of the request, without those that are held twice.
    renewed = [uuid for uuid in dict.fromkeys(request.held) if uuid in renewed]
    return LeaseGrant(new, renewed, lost=[uuid for uuid in request.held if uuid not in renewed])


_RENEW = """
    UPDATE feedback_lease SET expires_at = {after}, shown = (shown OR uuid = %s), prompt_version = %s
    WHERE id IN (
        SELECT l.id FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
        WHERE l.labeler_id = %s AND c.experiment_id = %s AND l.expires_at > {after}
          AND {live} AND {still_asked}
        ORDER BY CASE WHEN l.uuid IN ({held}) THEN 0 ELSE 1 END, l.shown DESC, l.id
        LIMIT {most})
      AND expires_at > {now}
    RETURNING uuid, swapped, id,
        (SELECT c.uuid FROM feedback_comparison c WHERE c.id = comparison_id),
        (SELECT c.first_key FROM feedback_comparison c WHERE c.id = comparison_id),
        (SELECT c.second_key FROM feedback_comparison c WHERE c.id = comparison_id)"""


def _renew(who: Participant, request: LeaseRequest) -> list[Offer]:
    """Extend live leases: those that the page holds, and up to ``request.count`` that it lost sight of."""
    held = [key(uuid) for uuid in request.held]
    found = rows(
        _RENEW,
        [
            seconds(settings.LEASE_SECONDS),
            key(request.shown or _NO_LEASE),
            who.prompt_version,
            who.labeler,
            who.experiment,
            seconds(_NEARLY_OVER_SECONDS),
            *held,
        ],
        held=", ".join(["%s"] * len(held)) or "NULL",
        most=str(max(request.count, len(held))),
    )
    return [
        Offer(uuid_of(uuid), uuid_of(comparison), first_key, second_key, bool(swapped))
        for uuid, swapped, _, comparison, first_key, second_key in sorted(found, key=lambda row: row[2])
    ]


_LOCK_PAIRS = """
    SELECT c.id FROM feedback_comparison c
    WHERE c.experiment_id = %s AND c.id IN (
        SELECT l.comparison_id FROM feedback_lease l
        WHERE l.labeler_id = %s AND l.uuid IN ({uuids}) AND {unanswered})
    ORDER BY c.id {wait_and_lock}"""
_BRING_BACK = """
    UPDATE feedback_lease SET expires_at = {after}, shown = (shown OR uuid = %s), prompt_version = %s
    WHERE id IN (
        SELECT MAX(l.id) FROM feedback_lease l JOIN feedback_comparison c ON c.id = l.comparison_id
        WHERE c.experiment_id = %s AND l.labeler_id = %s AND l.uuid IN ({uuids})
          AND {unanswered} AND {still_asked}
          AND (l.purpose <> 'judge'
               OR c.n_labels + {places_taken} < c.wanted AND NOT {judged_by} AND NOT {held_by})
        GROUP BY l.comparison_id)
    RETURNING uuid"""


def _bring_back(who: Participant, forgotten: Sequence[UUID], shown: UUID | None) -> list[UUID]:
    """Renew expired leases whose places nobody took, one for each comparison; return them."""
    own = [who.experiment, who.labeler, *map(key, forgotten)]
    uuids = ", ".join(["%s"] * len(forgotten))
    if not rows(_LOCK_PAIRS, own, uuids=uuids):
        return []
    change = [seconds(settings.LEASE_SECONDS), key(shown or _NO_LEASE), who.prompt_version]
    back = rows(_BRING_BACK, [*change, *own, who.labeler, who.labeler], uuids=uuids)
    return [uuid_of(uuid) for (uuid,) in back]


# In the order in which they should be judged. Rows that others look at in this moment are passed over.
_QUEUE = """
    SELECT c.id, c.uuid, c.first_key, c.second_key FROM feedback_comparison c
    WHERE c.experiment_id = %s AND c.status = 'open' AND c.n_labels + {places_taken} < c.wanted
      AND NOT {judged_by} AND NOT {held_by}
    ORDER BY c.priority DESC, c.n_labels DESC, c.id DESC
    LIMIT {count} {lock}"""


def _claim(who: Participant, count: int, held: int) -> list[Offer]:
    """Claim up to ``count`` pairs; one of them is a check where one is due."""
    check = due_check(who, range(who.answers + held, who.answers + held + count))
    claimed: list[Offer] = []
    for _ in range(_ATTEMPTS):
        missing = count - len(claimed)
        queue = rows(_QUEUE, [who.experiment, who.labeler, who.labeler], count=str(missing))
        pairs = [Pair.of(row) for row in queue]
        if check is not None:
            found = pick_check(who, check.purpose)
            if found is not None:
                pair = Pair.of(found, check.purpose)
                pairs = [*pairs[: check.place], pair, *pairs[check.place : missing - 1]]
            check = None
        claimed += _grant_all(who, pairs)
        if len(queue) < missing or len(claimed) >= count:
            break
    return claimed


# The queue was read before its rows were locked: a place may have gone in between. Only now is it certain.
_GRANT = """
    SELECT %s, c.id, %s, %s, {false}, %s, %s, {after}, {now} FROM feedback_comparison c
    WHERE c.id = %s AND NOT {held_by}"""
_GRANT_JUDGE = (
    _GRANT + " AND NOT {judged_by} AND c.status = 'open' AND c.n_labels + {places_taken} < c.wanted"
)
_INSERT = """
    INSERT INTO feedback_lease
        (uuid, comparison_id, labeler_id, swapped, shown, purpose, prompt_version, expires_at, created_at)
"""


def _grant_all(who: Participant, pairs: Sequence[Pair]) -> list[Offer]:
    """Give the labeler a place on each of these locked pairs that has one; the sides are drawn."""
    if not pairs:
        return []
    offers = {
        pair.comparison: Offer(
            uuid4(), pair.uuid, pair.first_key, pair.second_key, bool(_random.getrandbits(1))
        )
        for pair in pairs
    }
    grants: list[str] = []
    values: list[object] = []
    for pair in pairs:
        offer = offers[pair.comparison]
        lease = [key(offer.uuid), who.labeler, offer.swapped, pair.purpose, who.prompt_version]
        judges = pair.purpose == Lease.Purpose.JUDGE
        grants.append(_GRANT_JUDGE if judges else _GRANT)
        values += [*lease, seconds(settings.LEASE_SECONDS), pair.comparison]
        values += [who.labeler] * (2 if judges else 1)
    given = rows(_INSERT + " UNION ALL ".join(grants) + " RETURNING comparison_id", values)
    granted = {comparison for (comparison,) in given}
    return [offer for comparison, offer in offers.items() if comparison in granted]


_YIELD = """
    UPDATE feedback_lease SET expires_at = {now}
    WHERE id = (
        SELECT l.id
        FROM feedback_participation p
        JOIN feedback_lease l ON l.labeler_id = p.labeler_id
        JOIN feedback_comparison c ON c.id = l.comparison_id AND c.experiment_id = p.experiment_id
        WHERE p.experiment_id = %s AND c.status = 'open' AND l.purpose = 'judge' AND NOT l.shown AND {live}
          AND NOT {judged_by} AND NOT {held_by}
          AND 1 < (
            SELECT COUNT(*) FROM feedback_lease o JOIN feedback_comparison d ON d.id = o.comparison_id
            WHERE o.labeler_id = l.labeler_id AND o.expires_at > {now} AND d.status = 'open'
              AND d.experiment_id = p.experiment_id
              AND 0 = (SELECT COUNT(*) FROM feedback_label a WHERE a.lease_id = o.id))
        ORDER BY l.id DESC
        LIMIT 1 {lock})
      AND NOT shown AND expires_at > {now}
    RETURNING comparison_id,
        (SELECT c.uuid FROM feedback_comparison c WHERE c.id = comparison_id),
        (SELECT c.first_key FROM feedback_comparison c WHERE c.id = comparison_id),
        (SELECT c.second_key FROM feedback_comparison c WHERE c.id = comparison_id)"""


def _take_prefetched(who: Participant) -> list[Offer]:
    """Take over one pair that another labeler has only fetched ahead, leaving that labeler at least one."""
    found = rows(_YIELD, [who.experiment, who.labeler, who.labeler])
    return _grant_all(who, [Pair.of(row) for row in found])


@transaction.atomic
def has_work(who: Participant) -> bool:
    """Say whether there is a pair that the labeler holds or could have."""
    held = Lease.objects.filter(
        live(), labeler=who.labeler, comparison__experiment=who.experiment, purpose=Lease.Purpose.JUDGE
    )
    return held.exists() or bool(rows(_QUEUE, [who.experiment, who.labeler, who.labeler], count="1"))


def grant(comparison: Comparison, labeler: Labeler, *, swapped: bool, purpose: str) -> Lease:
    """Give back to ``labeler``, on screen at once, a place on a locked comparison that it left."""
    return Lease.objects.create(
        comparison=comparison,
        labeler=labeler,
        swapped=swapped,
        purpose=purpose,
        shown=True,
        prompt_version=comparison.experiment.prompt_version,
        expires_at=fresh_expiry(),
    )


def expire_leases(labeler: int, experiment: int) -> None:
    """Give what a labeler holds in an experiment to others."""
    run(
        """
        UPDATE feedback_lease SET expires_at = {now}
        WHERE labeler_id = %s AND expires_at > {now}
          AND comparison_id IN (SELECT c.id FROM feedback_comparison c WHERE c.experiment_id = %s)""",
        [labeler, experiment],
    )

"""Who may judge what, for how long: claims on comparisons that expire.

Labels that count plus live leases of a comparison never exceed the labels it wants, and a free place belongs
to a label that waits for one before it is leased. Whoever adds a lease, brings an expired one back or counts
a label holds the comparison's row lock while looking and writing (on SQLite every transaction is alone), and
"live" is judged by the database's clock.

Nor does a labeler hold more than it may because it asks many times at once: its requests take turns.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from human_feedback_site.feedback.errors import NoConsentError
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Lease,
    Participation,
)
from human_feedback_site.feedback.queue.claims import Participant
from human_feedback_site.feedback.queue.places import (
    NEARLY_OVER_SECONDS,
    Found,
    Offer,
    Pair,
    is_waiting,
    look,
)
from human_feedback_site.feedback.queue.sql import key, rows, run, seconds

_random = random.SystemRandom()
# Statements that are left to a request for work when two have said who asks: six at most, and one more on
# PostgreSQL, by which it waits for its turn.
_STATEMENTS = 4
_A_ROUND = 2  # one that finds and locks, and one that takes
_NO_LEASE = UUID(int=0)
TAKEN_OVER = 3
"""Pairs at most that a labeler without any is given of what others have fetched ahead."""


@dataclass(frozen=True)
class LeaseRequest:
    """What a labeler's page holds and wants."""

    count: int
    held: Sequence[UUID] = ()
    shown: UUID | None = None


@dataclass(frozen=True)
class LeaseGrant:
    """``new`` leases to fetch, ``renewed`` ones to keep, and those that were ``lost``.

    ``settle``: nothing was given, and within the bound on statements there is one left to look for labels
    that wait.
    """

    new: Sequence[Offer] = ()
    renewed: Sequence[UUID] = ()
    lost: Sequence[UUID] = ()
    settle: bool = False


def live() -> Q:
    """Leases that are neither answered nor expired; only a lease to judge takes a place."""
    return unanswered() & Q(expires_at__gt=Now())


def unanswered() -> Q:
    """Leases without an answer; one under an older lease of the same pair ends the newer one, unless void."""
    answers = Label.objects.filter(
        Q(lease=OuterRef("pk")) | Q(created_at__gte=OuterRef("created_at")) & ~Q(status=Label.Status.VOID),
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
        return LeaseGrant(lost=list(request.held), settle=True)
    if who.wanted is not None:
        request = replace(request, count=min(request.count, who.wanted - who.answered))
    left = _STATEMENTS - who.is_new
    if who.state == Experiment.State.RUNNING:
        given, left = _give(who, request, left)
    else:
        given = LeaseGrant(lost=list(request.held))
    empty = not given.new and not given.renewed
    if empty != who.empty and left > 0:
        since = Now() if empty else None
        Participation.objects.filter(pk=who.participation).update(empty_since=since)
        left -= 1
    return replace(given, settle=empty and left > 0)


def wait_for_turn(participation: int) -> None:
    """Let one request of a labeler after the other count what it holds, and take more.

    This is a statement of its own, for only the next one sees what the request before took. Whoever waits
    here holds no other lock, and nothing else takes this one, so no circle of waiting can close. Answers and
    undos need none: they make an answer of a lease or a lease of an answer, and what is counted is the sum
    of both in one moment. They lock the participation's row, but after the comparison's; taken first here,
    its lock would close such a circle, and be written to the disk for each look into an empty queue.
    """
    if connection.vendor == "postgresql":  # on SQLite every transaction is alone
        run("SELECT pg_advisory_xact_lock(CAST(%s AS bigint))", [participation])


def _room(who: Participant, count: int, promised: int) -> int:
    """Return how many of ``count`` pairs more the labeler may answer, whatever it does in this moment."""
    return max(0, count if who.wanted is None else min(count, who.wanted - promised))


def _give(who: Participant, request: LeaseRequest, left: int) -> tuple[LeaseGrant, int]:
    """Return what is given, and how many statements of those that were ``left`` still are."""
    wait_for_turn(who.participation)
    held = list(dict.fromkeys(request.held))
    found = look(who, held, max(0, request.count - len(held)))
    kept = _renew(who, request, found)
    renewed = [uuid for uuid in held if uuid in kept]
    new = [offer for uuid, offer in kept.items() if uuid not in renewed]
    new = new[: max(0, request.count - len(renewed))]
    came_back = sum(offer.uuid in kept for offer in found.expired.values())
    room = _room(who, request.count, found.promised + came_back)
    chosen = found.choose(min(request.count - len(renewed) - len(new), room))
    new += _grant_all(who, chosen)
    left -= 1 + bool(found.live or found.expired) + bool(chosen)
    # Somebody who has nothing in hand gets a second chance; that this is so no longer is to be noted, too.
    while room and not renewed and not new and left - who.empty >= _A_ROUND:
        if found.is_all:
            new = _take_prefetched(who, min(room, TAKEN_OVER))
            left -= 1 + bool(new)
            break
        found = look(who, (), request.count)
        chosen = found.choose(_room(who, request.count, found.promised))
        new = _grant_all(who, chosen)
        left -= 1 + bool(chosen)
    return LeaseGrant(new, renewed, lost=[uuid for uuid in request.held if uuid not in renewed]), left


_RENEW = """
    UPDATE feedback_lease AS l
    SET expires_at = {after}, shown = (shown OR uuid = %s), prompt_version = %s, invite_id = %s
    WHERE l.id IN ({leases}) AND {unanswered} AND (l.expires_at > {after} OR {comes_back})
    RETURNING id"""
# The pairs of these are locked.
_COMES_BACK = """l.id IN ({expired}) AND 0 < (
        SELECT COUNT(*) FROM feedback_comparison c WHERE c.id = l.comparison_id AND {has_place})"""


def _renew(who: Participant, request: LeaseRequest, found: Found) -> dict[UUID, Offer]:
    """Extend live leases, those that the page holds and some that it lost sight of.

    Expired ones come back where the labeler holds fewer than it asks for, what is on its screen first.

    The margin is asked for again: what somebody else ended since it was found may, by the clock of this
    statement, which began earlier, still last a moment.
    """
    most = max(request.count, len(set(request.held)))
    room = _room(who, request.count - len(found.live), found.promised)
    back_first = sorted(found.expired.items(), key=lambda expired: expired[1].uuid != request.shown)
    expired = dict(back_first[:room])
    leases = dict([*found.live.items()][:most]) | expired
    if not leases:
        return {}
    values = [seconds(settings.LEASE_SECONDS), key(request.shown or _NO_LEASE)]
    values += [who.prompt_version, who.invite, *leases, seconds(NEARLY_OVER_SECONDS)]
    if expired:
        values += [*expired, who.labeler, who.labeler]
    back = rows(
        _RENEW,
        values,
        comes_back=_COMES_BACK if expired else "1 = 0",
        leases=", ".join(["%s"] * len(leases)),
        expired=", ".join(["%s"] * len(expired)),
    )
    return {leases[lease].uuid: leases[lease] for (lease,) in sorted(back)}


# The queue was read before its rows were locked: a place may have gone in between. Only now is it certain.
_GRANT = """
    SELECT %s, c.id, %s, %s, {false}, %s, %s, CAST(%s AS bigint), {after}, {now} FROM feedback_comparison c
    WHERE c.id = %s AND NOT {held_by}"""
_GRANT_JUDGE = _GRANT + " AND NOT {judged_by} AND c.status = 'open' AND {is_free}"
_INSERT = """
    INSERT INTO feedback_lease
        (uuid, comparison_id, labeler_id, swapped, shown, purpose, prompt_version, invite_id,
         expires_at, created_at)
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
        judges = pair.purpose == Lease.Purpose.JUDGE
        grants.append(_GRANT_JUDGE if judges else _GRANT)
        values += [key(offer.uuid), who.labeler, offer.swapped, pair.purpose, who.prompt_version, who.invite]
        values += [seconds(settings.LEASE_SECONDS), pair.comparison]
        values += [who.labeler] * (2 if judges else 1)
    given = rows(_INSERT + " UNION ALL ".join(grants) + " RETURNING comparison_id", values)
    granted = {comparison for (comparison,) in given}
    return [offer for comparison, offer in offers.items() if comparison in granted]


_YIELD = """
    UPDATE feedback_lease SET expires_at = {now}
    WHERE id IN (
        SELECT l.id
        FROM feedback_participation p
        JOIN feedback_lease l ON l.labeler_id = p.labeler_id
        JOIN feedback_comparison c ON c.id = l.comparison_id AND c.experiment_id = p.experiment_id
        WHERE p.experiment_id = %s AND c.status = 'open' AND l.purpose = 'judge' AND NOT l.shown AND {live}
          AND NOT {judged_by} AND NOT {held_by} AND c.n_labels + {places_taken} + {waiting} <= c.wanted
          AND 0 <= (
            SELECT SUM(CASE WHEN o.id < l.id THEN 1 ELSE -1 END)
            FROM feedback_lease o JOIN feedback_comparison d ON d.id = o.comparison_id
            WHERE o.labeler_id = l.labeler_id AND o.expires_at > {now} AND d.status = 'open'
              AND d.experiment_id = p.experiment_id
              AND 0 = (SELECT COUNT(*) FROM feedback_label a WHERE a.lease_id = o.id))
        ORDER BY l.id DESC
        LIMIT %s {lock})
      AND NOT shown AND expires_at > {now}
    RETURNING comparison_id,
        (SELECT c.uuid FROM feedback_comparison c WHERE c.id = comparison_id),
        (SELECT c.first_key FROM feedback_comparison c WHERE c.id = comparison_id),
        (SELECT c.second_key FROM feedback_comparison c WHERE c.id = comparison_id)"""


def _take_prefetched(who: Participant, most: int) -> list[Offer]:
    """Take over what other labelers have only fetched ahead: at most the newer half of what each holds."""
    found = rows(_YIELD, [who.experiment, who.labeler, who.labeler, most])
    pairs = {pair.comparison: pair for pair in map(Pair.of, found)}  # two may have given up the same one
    return _grant_all(who, list(pairs.values()))


@transaction.atomic
def has_work(who: Participant) -> bool:
    """Say whether there is a pair that the labeler holds or could have."""
    held = Lease.objects.filter(
        live(), labeler=who.labeler, comparison__experiment=who.experiment, purpose=Lease.Purpose.JUDGE
    )
    return held.exists() or is_waiting(who)


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


def expire_leases(labeler: int, experiment: int) -> None:
    """Give what a labeler holds in an experiment to others."""
    run(
        """
        UPDATE feedback_lease SET expires_at = {now}
        WHERE labeler_id = %s AND expires_at > {now}
          AND comparison_id IN (SELECT c.id FROM feedback_comparison c WHERE c.experiment_id = %s)""",
        [labeler, experiment],
    )

"""The rules for leases and labels as a small model, in which every state can be looked at.

Two labelers, two pairs. It knows nothing of Django; ``test_label_search.py`` holds it against the site. What
it leaves out (checks, invitations, what an answer says) plays no part in who holds which place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

LABELERS = (0, 1)
PAIRS = (0, 1)


class Lease(Enum):
    """A labeler's newest lease of a pair."""

    NONE = "none"
    LIVE = "live"
    EXPIRED = "expired"  # not answered
    ANSWERED = "answered"


@dataclass(frozen=True)
class Pair:
    """A pair: its leases, and who has given a label that stands; surplus ones in order."""

    wanted: int = 1
    cancelled: bool = False
    leases: tuple[Lease, ...] = (Lease.NONE,) * len(LABELERS)
    counted: frozenset[int] = frozenset()
    surplus: tuple[int, ...] = ()

    @property
    def live(self) -> int:
        return self.leases.count(Lease.LIVE)

    @property
    def is_open(self) -> bool:
        return not self.cancelled and len(self.counted) < self.wanted

    def rank(self) -> tuple[object, ...]:
        leases = tuple(lease.value for lease in self.leases)
        return self.wanted, self.cancelled, leases, sorted(self.counted), self.surplus

    def judged_by(self, labeler: int) -> bool:
        return labeler in self.counted or labeler in self.surplus

    def with_lease(self, labeler: int, lease: Lease) -> Pair:
        leases = tuple(lease if other == labeler else self.leases[other] for other in LABELERS)
        return replace(self, leases=leases)

    def without_label(self, labeler: int) -> Pair:
        surplus = tuple(other for other in self.surplus if other != labeler)
        return replace(self, counted=self.counted - {labeler}, surplus=surplus)


@dataclass(frozen=True)
class World:
    """All there is."""

    pairs: tuple[Pair, ...] = (Pair(),) * len(PAIRS)
    blocked: frozenset[int] = frozenset()

    def eligible(self, pair: Pair) -> list[int]:
        return [labeler for labeler in pair.surplus if labeler not in self.blocked]

    def filled(self, pair: Pair) -> Pair:
        """Surplus labels count while labels are wanted, the oldest first."""
        lack = pair.wanted - len(pair.counted)
        promoted = [] if pair.cancelled else self.eligible(pair)[: max(0, lack)]
        if not promoted:
            return pair
        surplus = tuple(labeler for labeler in pair.surplus if labeler not in promoted)
        return replace(pair, counted=pair.counted | set(promoted), surplus=surplus)

    def all_filled(self) -> World:
        return replace(self, pairs=tuple(self.filled(pair) for pair in self.pairs))

    def with_pair(self, place: int, pair: Pair) -> World:
        return replace(self, pairs=tuple(pair if other == place else self.pairs[other] for other in PAIRS))

    def canonical(self) -> World:
        """The one of those worlds that differ by the names of labelers and pairs."""
        return min((self.renamed(labelers) for labelers in ((0, 1), (1, 0))), key=World.rank)

    def rank(self) -> tuple[object, ...]:
        return *(pair.rank() for pair in self.pairs), sorted(self.blocked)

    def renamed(self, names: tuple[int, ...]) -> World:
        pairs = tuple(
            Pair(
                pair.wanted,
                pair.cancelled,
                tuple(pair.leases[name] for name in names),
                frozenset(names[labeler] for labeler in pair.counted),
                tuple(names[labeler] for labeler in pair.surplus),
            )
            for pair in self.pairs
        )
        return World(
            tuple(sorted(pairs, key=Pair.rank)), frozenset(names[labeler] for labeler in self.blocked)
        )


@dataclass(frozen=True)
class Step:
    """Something that happens, to a labeler and a pair where it is about these."""

    what: str
    labeler: int | None = None
    pair: int | None = None
    number: int | None = None


def steps(world: World) -> Iterator[Step]:
    """All that can happen now and change something, or has to be refused."""
    for labeler in LABELERS:
        yield Step("ask", labeler)
        yield Step("readmit" if labeler in world.blocked else "block", labeler)
        for place, pair in enumerate(world.pairs):
            if pair.leases[labeler] == Lease.LIVE:
                yield Step("expire", labeler, place)
            if pair.leases[labeler] != Lease.NONE:
                yield Step("answer", labeler, place)
            if pair.judged_by(labeler):
                yield Step("undo", labeler, place)
    for place, pair in enumerate(world.pairs):
        if pair.is_open:
            yield Step("close", pair=place)
            yield Step("cancel", pair=place)
        if pair.cancelled:
            yield Step("reopen", pair=place)
    for number in (1, 2):
        yield Step("overlap", number=number)


def after(world: World, step: Step) -> World:
    if step.pair is not None:
        pair = _TO_PAIR[step.what](world, world.pairs[step.pair], step.labeler or 0)
        return world.with_pair(step.pair, pair)
    if step.labeler is not None:
        return _TO_LABELER[step.what](world, step.labeler)
    number = step.number or 1
    pairs = (pair if pair.cancelled else replace(pair, wanted=number) for pair in world.pairs)
    return replace(world, pairs=tuple(pairs)).all_filled()


def _ask(world: World, labeler: int) -> World:
    if labeler in world.blocked:
        return replace(world, pairs=tuple(_ended(pair, labeler) for pair in world.pairs))
    return replace(world, pairs=tuple(_leased(pair, labeler) for pair in world.pairs))


def _leased(pair: Pair, labeler: int) -> Pair:
    free = len(pair.counted) + pair.live < pair.wanted
    holds = pair.leases[labeler] == Lease.LIVE
    if pair.is_open and free and not holds and not pair.judged_by(labeler):
        return pair.with_lease(labeler, Lease.LIVE)
    return pair


def _block(world: World, labeler: int) -> World:
    pairs = tuple(_ended(pair, labeler).without_label(labeler) for pair in world.pairs)
    return World(pairs, world.blocked | {labeler}).all_filled()


def _readmit(world: World, labeler: int) -> World:
    return replace(world, blocked=world.blocked - {labeler}).all_filled()


def _ended(pair: Pair, labeler: int) -> Pair:
    return pair.with_lease(labeler, Lease.EXPIRED) if pair.leases[labeler] == Lease.LIVE else pair


def _all_ended(pair: Pair) -> Pair:
    for labeler in LABELERS:
        pair = _ended(pair, labeler)
    return pair


def _answered(world: World, pair: Pair, labeler: int) -> Pair:
    pair = pair.with_lease(labeler, Lease.ANSWERED)
    if labeler in world.blocked or pair.judged_by(labeler):
        return pair
    if pair.is_open:
        return replace(pair, counted=pair.counted | {labeler})
    return replace(pair, surplus=(*pair.surplus, labeler))


def _undone(world: World, pair: Pair, labeler: int) -> Pair:
    left = pair.without_label(labeler)
    if labeler not in pair.counted:
        return left
    return world.filled(left.with_lease(labeler, Lease.LIVE))


def _closed(_world: World, pair: Pair, _: int) -> Pair:
    pair = _all_ended(pair)
    return replace(pair, wanted=len(pair.counted)) if pair.counted else replace(pair, cancelled=True)


def _cancelled(_world: World, pair: Pair, _: int) -> Pair:
    return pair if pair.counted else replace(pair, cancelled=True)


def _reopened(world: World, pair: Pair, _: int) -> Pair:
    return world.filled(replace(pair, cancelled=False))


_TO_LABELER: Mapping[str, Callable[[World, int], World]] = {
    "ask": _ask,
    "block": _block,
    "readmit": _readmit,
}
_TO_PAIR: Mapping[str, Callable[[World, Pair, int], Pair]] = {
    "answer": _answered,
    "undo": _undone,
    "expire": lambda _, pair, labeler: _ended(pair, labeler),
    "close": _closed,
    "cancel": _cancelled,
    "reopen": _reopened,
}


def search(start: World) -> Mapping[World, tuple[World, Step] | None]:
    """Return each reachable world with the step, and the world, by which it is reached in the fewest steps.

    Of worlds that differ by the names of labelers and pairs one stands for all.
    """
    found: dict[World, tuple[World, Step] | None] = {start: None}
    queue = deque([start])
    while queue:
        world = queue.popleft()
        for step in steps(world):
            then = after(world, step).canonical()
            if then not in found:
                found[then] = world, step
                queue.append(then)
    return found


def go_on(world: World, labelers: Iterable[int]) -> World:
    """Let time pass, and then these labelers keep coming, answering all that they are given."""
    world = replace(world, pairs=tuple(_all_ended(pair) for pair in world.pairs))
    while True:
        before = world
        for labeler in labelers:
            world = after(world, Step("ask", labeler))
            for place in PAIRS:
                if world.pairs[place].leases[labeler] == Lease.LIVE:
                    world = after(world, Step("answer", labeler, place))
        if world == before:
            return world

"""Questions about one segment, which is rated from 1 to 5."""

from collections.abc import Sequence
from math import floor
from typing import ClassVar
from uuid import UUID, uuid5

from teacher.data.decisions import CANT_TELL
from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.data.segments import Segment
from teacher.queries.judges import Judge
from teacher.queries.kinds.base import Decided, Kind, perceive
from teacher.settings.options import KindName

LEVELS = 5
PARTNERS = 5
"""Number of ratings before a rating that it is compared with; scales drift, so older ones say less."""
SETTLING = 5
"""Number of first ratings that are compared with none, because their scale was not settled yet."""
VALUES = (0.5, 0.85, 0.95, 0.99, 0.99)
"""Probability that the segment with the higher level is better, by difference in level (docs/feedback.md)."""


class Rating(Kind):
    """Question how good a segment is, on a scale from 1 to 5."""

    name: ClassVar[KindName] = "rating"
    size: ClassVar[int] = 1
    question: ClassVar[str] = "How good is the clip?"
    prompt: ClassVar[str] = f"[1] worst to [{LEVELS}] best  [c]an't tell: "

    def judge(self, judge: Judge, items: Sequence[Segment]) -> Decided:
        """Return the fifth of the returns seen so far that the segment's return is in."""
        perceived = perceive(judge, items, self.name)
        if perceived is None:
            return CANT_TELL, None
        [value], seen = perceived.returns, perceived.remembered
        below, equal = sum(each < value for each in seen), sum(each == value for each in seen)
        level = min(LEVELS, 1 + floor(LEVELS * (below + equal / 2) / len(seen)))
        return str(LEVELS + 1 - level if perceived.slips else level), None

    def read(self, typed: str, order: Sequence[int], /) -> Decided | None:
        """Return the typed rating; an empty line means "can't tell"."""
        if typed[:1] in {"c", ""}:
            return CANT_TELL, None
        return (typed, None) if typed in map(str, range(1, LEVELS + 1)) else None

    def follow(self, ledger: Ledger, *, from_start: bool) -> "RatedPairs":
        """Derive preferences between rated segments."""
        return RatedPairs(ledger, from_start=from_start)


_Pair = tuple[UUID, UUID]


class RatedPairs:
    """Preferences between each rated segment and the :data:`PARTNERS` segments rated before it.

    The first :data:`SETTLING` ratings are left out. The weights of a rating's preferences with earlier ones
    add up to 1.
    """

    def __init__(self, ledger: Ledger, *, from_start: bool) -> None:
        self._ledger = ledger
        self._known = {} if from_start else self._pairs()
        self._cursor = -1 if from_start else ledger.cursor

    def changes(self, answered: Answered) -> list[Preference]:
        """Return the preferences that changed since the last call; withdraw those that no longer follow."""
        if self._ledger.cursor == self._cursor:
            return []
        before, self._known, self._cursor = self._known, self._pairs(), self._ledger.cursor
        gone = {pair: (None, 1.0) for pair in before if pair not in self._known}
        changed = {pair: target for pair, target in self._known.items() if before.get(pair) != target}
        items = {answered.uuid: answered.items[0]}
        missing = {uuid for pair in (*gone, *changed) for uuid in pair} - items.keys()
        items |= {each.uuid: each.items[0] for each in self._ledger.answered(missing)}
        return [
            Preference(uuid5(rated, str(earlier)), items[rated], items[earlier], *target, rated)
            for (rated, earlier), target in {**gone, **changed}.items()
        ]

    def _pairs(self) -> dict[_Pair, tuple[float, float]]:
        """Return the value and weight of the preference of each rating over an earlier one."""
        ratings = [(uuid, int(answer)) for uuid, answer in self._ledger.answers("rating")[SETTLING:]]
        pairs = {}
        for at, (rated, level) in enumerate(ratings):
            partners = ratings[max(0, at - PARTNERS) : at]
            for earlier, other in partners:
                value = VALUES[abs(level - other)]
                pairs[rated, earlier] = (value if level >= other else 1 - value, 1 / len(partners))
        return pairs

"""Questions about one segment, which is rated from 1 to 5."""

from collections import Counter
from collections.abc import Sequence
from math import floor
from typing import ClassVar
from uuid import UUID, uuid5

from teacher.data.decisions import CANT_TELL
from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.errors import DataError
from teacher.queries.kinds.base import Decided, PerceivedKind
from teacher.settings.options import KindName
from teacher.settings.teachers import Perceived

LEVELS = 5
PARTNERS = 5
"""Number of ratings before a rating that it is compared with; scales drift, so older ones say less."""
SETTLING = 5
"""Number of first ratings that are compared with none, because their scale was not settled yet."""
VALUES = (0.5, 0.85, 0.95, 0.99, 0.99)
"""Probability that the segment with the higher level is better, by difference in level (docs/feedback.md)."""


class Rating(PerceivedKind):
    """Question how good a segment is, on a scale from 1 to 5."""

    name: ClassVar[KindName] = "rating"
    answers: ClassVar[Sequence[str]] = [str(level) for level in range(1, LEVELS + 1)]
    question: ClassVar[str] = "How good is the clip?"
    compares_own_items: ClassVar[bool] = False
    prompt: ClassVar[str] = f"[1] worst to [{LEVELS}] best  [c]an't tell: "
    hint: ClassVar[str] = f"1 is the worst and {LEVELS} the best."

    def answer(self, perceived: Perceived) -> Decided:
        """Return the fifth of the returns seen so far that the segment's return is in."""
        [value] = perceived.returns
        level = min(LEVELS, 1 + floor(_place(value, perceived.remembered)))
        return str(LEVELS + 1 - level if perceived.slips else level), None

    def known(self, returns: Sequence[float], seen: Sequence[float] = (), /) -> tuple[str, float]:
        """Return the highest or lowest level; it is clear in the top and bottom fifths of what was seen."""
        place = _place(returns[0], seen) if seen else LEVELS / 2
        margin = max(place - (LEVELS - 1), 1 - place)
        return str(LEVELS if place > LEVELS / 2 else 1), max(0.0, margin)

    def fits(self, answer: str, returns: Sequence[float]) -> bool:
        """Return True for all ratings, because a labeler's scale depends on the clips seen before."""
        return answer in self.answers

    def read(self, typed: str, order: Sequence[int], /) -> Decided | None:
        """Return the typed rating; an empty line means "can't tell"."""
        if typed[:1] in {"c", ""}:
            return CANT_TELL, None
        return (typed, None) if typed in self.answers else None

    def follow(self, ledger: Ledger, *, from_start: bool) -> "RatedPairs":
        """Derive preferences between rated segments."""
        return RatedPairs(ledger, from_start=from_start)


def _place(value: float, seen: Sequence[float]) -> float:
    """Return the place of a return among those seen, from 0 (lowest) to 5 (highest)."""
    below, equal = sum(each < value for each in seen), sum(each == value for each in seen)
    return LEVELS * (below + equal / 2) / len(seen)


_Pair = tuple[UUID, int, UUID]
"""A question, a labeler who rated it, and a question that the labeler had rated before."""


class RatedPairs:
    """Preferences between each rated segment and the :data:`PARTNERS` segments rated before it.

    Scales differ between people, so ratings are compared with those of the same labeler, of whom the first
    :data:`SETTLING` are left out. The weights of a question's preferences with earlier ones add up to 1.
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
        missing = {uuid for rated, _, earlier in (*gone, *changed) for uuid in (rated, earlier)}
        items |= {each.uuid: each.items[0] for each in self._ledger.answered(missing - items.keys())}
        return [
            Preference(uuid5(rated, f"{labeler}/{earlier}"), items[rated], items[earlier], *target, rated)
            for (rated, labeler, earlier), target in {**gone, **changed}.items()
        ]

    def _pairs(self) -> dict[_Pair, tuple[float, float]]:
        """Return the value and weight of the preference of each rating over an earlier one."""
        by_labeler: dict[int, list[tuple[UUID, int]]] = {}
        for uuid, labeler, answer in self._ledger.answers("rating"):
            by_labeler.setdefault(labeler, []).append((uuid, self._level(uuid, answer)))
        scales = {labeler: ratings[SETTLING:] for labeler, ratings in by_labeler.items()}
        # A labeler's first rating after SETTLING has no partners.
        raters = Counter(uuid for ratings in scales.values() for uuid, _ in ratings[1:])
        pairs = {}
        for labeler, ratings in scales.items():
            for at, (rated, level) in enumerate(ratings):
                partners = ratings[max(0, at - PARTNERS) : at]
                for earlier, other in partners:
                    value = VALUES[abs(level - other)]
                    weight = 1 / len(partners) / raters[rated]
                    pairs[rated, labeler, earlier] = (value if level >= other else 1 - value, weight)
        return pairs

    def _level(self, uuid: UUID, answer: str) -> int:
        if answer not in Rating.answers:
            raise DataError(
                f"{self._ledger.path} has the rating {answer} of {uuid}; expected {', '.join(Rating.answers)}"
            )
        return int(answer)

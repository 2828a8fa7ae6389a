"""Questions about four segments, of which the best and the worst are chosen (best-worst scaling)."""

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import ClassVar
from uuid import uuid5

from teacher.data.decisions import CANT_TELL
from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.queries.kinds.base import ByQuestion, Decided, PerceivedKind
from teacher.settings.options import KindName
from teacher.settings.teachers import Perceived


class BestWorst(PerceivedKind):
    """Question which of four segments is the best, and which the worst.

    An answer such as ``1>4`` has the numbers of the best and the worst segment.
    """

    name: ClassVar[KindName] = "best_worst"
    answers: ClassVar[Sequence[str]] = [f"{best}>{worst}" for best, worst in permutations("1234", 2)]
    question: ClassVar[str] = "Which clips are the best and the worst?"
    prompt: ClassVar[str] = "best, then worst, such as 14; above: [1] [2], below: [3] [4]  [c]an't tell: "
    hint: ClassVar[str] = "1>4 means that clip 1 is the best and clip 4 the worst."
    places: ClassVar[Sequence[str]] = ("1", "2", "3", "4")

    def answer(self, perceived: Perceived) -> Decided:
        """Choose the segments with the highest and the lowest return; can't tell if all are equal."""
        if len(set(perceived.returns)) == 1:
            return CANT_TELL, None
        worst, *_, best = _ascending(perceived.returns)
        return (_answer(worst, best) if perceived.slips else _answer(best, worst)), None

    def known(self, returns: Sequence[float], seen: Sequence[float] = (), /) -> tuple[str, float]:
        """Return the best and the worst, and the smaller of their distances from the other two."""
        worst, low, high, best = _ascending(returns)
        margin = min(returns[low] - returns[worst], returns[best] - returns[high])
        return _answer(best, worst), margin

    def fits(self, answer: str, returns: Sequence[float]) -> bool:
        """Return True if the answer's items have the highest and the lowest return, or all are equal."""
        if answer == CANT_TELL:
            return min(returns) == max(returns)
        best, worst = (returns[int(number) - 1] for number in answer.split(">"))
        return best == max(returns) and worst == min(returns)

    def read(self, typed: str, order: Sequence[int], /) -> Decided | None:
        """Return the answer meant by two typed numbers, of the best and of the worst segment."""
        if typed[:1] in {"c", ""}:
            return CANT_TELL, None
        places = ["1234".find(each) for each in typed if not each.isspace()]
        if len(places) != 2 or -1 in places or places[0] == places[1]:
            return None
        best, worst = (order[place] for place in places)
        return _answer(best, worst), None

    def implied(self, answer: str, /) -> Mapping[tuple[int, int], float]:
        """Return five of the six pairs of items: all but that of the two in the middle."""
        best, _, worst = answer.partition(">")
        found = {}
        for first, second in combinations(range(self.size), 2):
            numbers = (str(first + 1), str(second + 1))
            if worst and {*numbers} & {best, worst}:
                found[first, second] = float(numbers[0] == best or numbers[1] == worst)
        return found

    def follow(self, ledger: Ledger, *, from_start: bool) -> ByQuestion:
        """Derive five of the six possible preferences from each answer."""
        return ByQuestion(self._preferences)

    def _preferences(self, answered: Answered) -> list[Preference]:
        """Return one preference for each two items; the value of those that don't follow is None."""
        implied = self.implied(answered.decision or CANT_TELL)
        return [
            Preference(
                uuid5(answered.uuid, f"{first}/{second}"),
                answered.items[first],
                answered.items[second],
                implied.get((first, second)),
                question=answered.uuid,
            )
            for first, second in combinations(range(len(answered.items)), 2)
        ]


def _ascending(returns: Sequence[float]) -> list[int]:
    """Return the indices of items, sorted by return."""
    return sorted(range(len(returns)), key=lambda index: returns[index])


def _answer(best: int, worst: int) -> str:
    """Return the answer that calls the items with these indices the best and the worst."""
    return f"{best + 1}>{worst + 1}"

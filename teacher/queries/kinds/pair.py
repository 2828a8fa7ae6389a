"""Questions about two segments: which one is better, and in graded ones, by how much."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import ClassVar

from teacher.data.decisions import CANT_TELL, CERTAIN
from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, SegmentPair
from teacher.queries.judges import Judge, answer_of, decision_of
from teacher.queries.kinds.base import ByQuestion, Decided, Kind, PerceivedKind
from teacher.queries.selection import Ensemble, select_pairs
from teacher.settings.options import KindName, QueryConfig
from teacher.settings.teachers import Answerer, Perceived

CLEAR, SLIGHT = 0.95, 0.7
GRADES = {
    "clearly_first": CLEAR,
    "slightly_first": SLIGHT,
    "equal": 0.5,
    "slightly_second": 1 - SLIGHT,
    "clearly_second": 1 - CLEAR,
}
"""Probability that the first segment is better, for each graded answer (docs/feedback.md)."""


class Pair(Kind):
    """Question which of two segments is better."""

    name: ClassVar[KindName] = "pair"
    answers: ClassVar[Sequence[str]] = ("first", "equal", "second")
    question: ClassVar[str] = "Which clip is better?"
    prompt: ClassVar[str] = "[l]eft  [r]ight  [e]qual  [c]an't tell: "
    places: ClassVar[Sequence[str]] = ("left", "right")
    probabilities: ClassVar[Mapping[str, float | None]] = CERTAIN

    def select(
        self, pool: SegmentPool, count: int, config: QueryConfig | None, predictor: Ensemble | None, /
    ) -> Sequence[SegmentPair]:
        """Select pairs with :func:`~teacher.queries.selection.select_pairs`."""
        return select_pairs(pool, count, config, predictor)

    def judge(self, judge: Judge, items: Sequence[Segment]) -> Decided:
        """Return the judge's decision and probability."""
        probability = answer_of(judge, *pair_of(items))
        return decision_of(probability), probability

    def scripted(self, answerer: Answerer, returns: Sequence[float], key: str) -> Decided:
        """Return a scripted labeler's decision and probability."""
        first, second = returns
        probability = answerer.answer(first, second, key)
        return decision_of(probability), probability

    def known(self, returns: Sequence[float], seen: Sequence[float] = (), /) -> tuple[str, float]:
        """Return the segment with the higher return, or ``equal``, and the difference."""
        first, second = returns
        return "equal" if first == second else "first" if first > second else "second", abs(first - second)

    def read(self, typed: str, order: Sequence[int], /) -> Decided | None:
        """Return the answer meant by a typed line; an empty one means "can't tell"."""
        match typed[:1]:
            case "l" | "r" as side:
                return ("first", 1.0) if order["lr".index(side)] == 0 else ("second", 0.0)
            case "e":
                return "equal", 0.5
            case "c" | "":
                return CANT_TELL, None
        return None

    def implied(self, answer: str, /) -> Mapping[tuple[int, int], float]:
        """Return the answer's probability that the first segment is better."""
        probability = self.probabilities.get(answer)
        return {} if probability is None else {(0, 1): probability}

    def choice(self, answer: str) -> str:
        """Return the answer with the sides of the screen instead of the items."""
        return answer.replace("first", "left").replace("second", "right")

    def follow(self, ledger: Ledger, *, from_start: bool) -> ByQuestion:
        """Derive one preference from each question."""
        return ByQuestion(lambda each: [Preference(each.uuid, *pair_of(each.items), self.value(each))])

    def value(self, answered: Answered) -> float | None:
        """Return the probability that the first segment is better; None if there is no answer."""
        return answered.probability


def pair_of(items: Sequence[Segment]) -> SegmentPair:
    """Return the two items of a question about a pair."""
    first, second = items
    return first, second


class Graded(PerceivedKind, Pair):
    """Question which of two segments is better, clearly or slightly."""

    name: ClassVar[KindName] = "graded"
    answers: ClassVar[Sequence[str]] = list(GRADES)
    probabilities: ClassVar[Mapping[str, float | None]] = GRADES
    prompt: ClassVar[str] = "left: [l] slightly, [ll] clearly  right: [r], [rr]  [e]qual  [c]an't tell: "

    def answer(self, perceived: Perceived) -> Decided:
        """Return a grade: clear if the returns differ by at least the median difference seen so far."""
        first, second = reversed(perceived.returns) if perceived.slips else perceived.returns
        if perceived.looks_equal or first == second:
            return "equal", 0.5
        seen = perceived.remembered
        typical = median(abs(one - other) for one, other in zip(seen[::2], seen[1::2], strict=False))
        grade = "clearly" if abs(first - second) >= typical else "slightly"
        answer = f"{grade}_{'first' if first > second else 'second'}"
        return answer, GRADES[answer]

    def known(self, returns: Sequence[float], seen: Sequence[float] = (), /) -> tuple[str, float]:
        """Return that the segment with the higher return is clearly better, or ``equal``."""
        answer, difference = super().known(returns)
        return answer if answer == "equal" else f"clearly_{answer}", difference

    def fits(self, answer: str, returns: Sequence[float]) -> bool:
        """Return True if the answer prefers the segment with the higher return, however clearly."""
        return answer.partition("_")[2] == self.known(returns)[0].partition("_")[2]

    def reconciled(self, one: str, other: str) -> str:
        """Return the choice that both make, or the slighter one if both prefer the same clip."""
        side = one.partition("_")[2]
        same_side = one != other and side == other.partition("_")[2]
        return f"slightly_{side}" if same_side else super().reconciled(one, other)

    def read(self, typed: str, order: Sequence[int], /) -> Decided | None:
        """Return the answer meant by a typed line; the letter of a clearly better side is typed twice."""
        found = super().read(typed, order)
        if found is None or found[0] not in {"first", "second"}:
            return found
        answer = f"{'clearly' if typed in {'ll', 'rr'} else 'slightly'}_{found[0]}"
        return answer, GRADES[answer]

    def value(self, answered: Answered) -> float | None:
        """Return the grade's probability that the first segment is better; None if there is no answer."""
        return GRADES.get(answered.decision or CANT_TELL)

"""Interface between the trainer and one kind of question."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from teacher.data.decisions import CANT_TELL
from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import ConfigError
from teacher.queries.judges import Judge, ScriptedTeacher
from teacher.queries.selection import Ensemble, select_groups, sure_groups
from teacher.settings.options import ASKED, KindName, QueryConfig
from teacher.settings.teachers import Answerer, Perceived

Decided = tuple[str, float | None]
"""Answer to a question, and the probability that a pair's first segment is better; None for other kinds."""
Check = tuple[tuple[Segment, ...], str]
"""Items of an attention check, and the answer that is known to be right."""


class Kind(ABC):
    """Kind of question: which segments are asked about, how a judge answers, and what follows.

    Attributes:
        named: all kinds, by name.
        name: name in settings and files, one of :data:`~teacher.settings.options.ASKED`.
        answers: all answers but "can't tell"; in reverse order, they are the answers to reversed items.
        question: sentence to ask people in a terminal or notebook.
        prompt: keys to type for each answer.
        hint: what the choices mean, where their names don't say it.
        places: names of the places on the screen.
        compares_own_items: True if preferences between a question's own items follow from an answer.
    """

    named: ClassVar[dict[str, type["Kind"]]] = {}
    name: ClassVar[KindName]
    answers: ClassVar[Sequence[str]]
    question: ClassVar[str]
    prompt: ClassVar[str]
    hint: ClassVar[str] = ""
    places: ClassVar[Sequence[str]] = ("",)
    compares_own_items: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Register the kind, if the class is one."""
        if "name" in vars(cls):
            cls.named[cls.name] = cls

    @property
    def size(self) -> int:
        """Number of segments in a question."""
        return ASKED[self.name].size

    def select(
        self, pool: SegmentPool, count: int, config: QueryConfig | None, predictor: Ensemble | None, /
    ) -> Sequence[tuple[Segment, ...]]:
        """Select the items of up to ``count`` questions, and mark them as queried in the pool."""
        return select_groups(pool, self.size, count, config, predictor)

    def checks(
        self, pool: SegmentPool, count: int, config: QueryConfig, value: Callable[[Segment], float]
    ) -> Sequence[Check]:
        """Select up to ``count`` attention checks, and mark their items as queried in the pool.

        Args:
            value: function that scores a segment, for example by its true return.
        """

        if count < 1:
            return []
        values = {segment: value(segment) for segment in pool.segments}
        seen = list(values.values())

        def known(items: Sequence[Segment]) -> tuple[str, float]:
            return self.known([values[item] for item in items], seen)

        groups = sure_groups(pool, self.size, count, lambda items: known(items)[1], config)
        return [(items, known(items)[0]) for items in groups]

    @abstractmethod
    def judge(self, judge: Judge, items: Sequence[Segment]) -> Decided:
        """Return a judge's answer to a question.

        Raises:
            BehaviorError: the judge failed, or returned neither a decision nor a probability.
            ConfigError: the judge can only compare two segments.
            UndecidedError: a scripted teacher skipped too many questions in a row.
        """

    @abstractmethod
    def scripted(self, answerer: Answerer, returns: Sequence[float], key: str) -> Decided:
        """Return a scripted labeler's answer to a question about items with these returns.

        Args:
            key: the question's unique ID; seeds the labeler's random errors.
        """

    @abstractmethod
    def known(self, returns: Sequence[float], seen: Sequence[float] = (), /) -> tuple[str, float]:
        """Return the right answer to a question about items with these returns, and how clear it is.

        Args:
            seen: returns of the segments that may be asked about, for kinds whose answers depend on them.

        Returns:
            The answer, and a number that is higher for clearer ones; 0 if it isn't clear.
        """

    def fits(self, answer: str, returns: Sequence[float]) -> bool:
        """Return True if a labeler without errors may have given this answer."""
        return answer == self.known(returns)[0]

    def implied(self, answer: str, /) -> Mapping[tuple[int, int], float]:
        """Return the probability that the first of two items is better, by their indices.

        There is none for items between which an answer doesn't decide, or on which it depends on others.
        """
        return {}

    def choice(self, answer: str) -> str:
        """Return what to press for an answer if the items are shown in order: the answer in screen terms."""
        return answer

    @property
    def choices(self) -> Sequence[str]:
        """All choices on a screen but "can't tell", in the order of the answers that they mean."""
        return [self.choice(answer) for answer in self.answers]

    def reversed(self, choice: str) -> str:
        """Return the choice that means the same if the items are shown in reverse order."""
        if choice == CANT_TELL or self.size == 1:
            return choice
        return self.choices[-1 - self.choices.index(choice)]

    def reconciled(self, one: str, other: str) -> str:
        """Return the choice that follows from two to the same question; "can't tell" if they differ."""
        return one if one == other else CANT_TELL

    @abstractmethod
    def read(self, typed: str, order: Sequence[int], /) -> Decided | None:
        """Return the answer meant by a typed line, in lower case; None if the line isn't an answer.

        Args:
            order: index of the item in each place on the screen, row by row.
        """

    @abstractmethod
    def follow(self, ledger: Ledger, *, from_start: bool) -> "Implied":
        """Return an object that derives preferences from a ledger's decisions.

        Args:
            from_start: True to derive the preferences of decisions that are already in the ledger too.
        """


class PerceivedKind(Kind):
    """Kind whose answers by scripted teachers follow from the items' returns, which they see with errors."""

    def judge(self, judge: Judge, items: Sequence[Segment]) -> Decided:
        """Return the answer of a scripted teacher."""
        if not isinstance(judge, ScriptedTeacher):
            raise ConfigError(
                f"{self.name} questions need a scripted teacher, because other judges compare two segments; "
                'use ScriptedTeacher, or feedback="pair"'
            )
        return self._answer(judge.perceive(items))

    def scripted(self, answerer: Answerer, returns: Sequence[float], key: str) -> Decided:
        """Return the answer of a scripted labeler."""
        return self._answer(answerer.perceive(returns, key))

    def _answer(self, perceived: Perceived | None) -> Decided:
        return (CANT_TELL, None) if perceived is None else self.answer(perceived)

    @abstractmethod
    def answer(self, perceived: Perceived) -> Decided:
        """Return the answer that follows from a scripted teacher's view of the items."""


class Implied(Protocol):
    """Preferences that follow from the answers of one kind."""

    def changes(self, answered: Answered) -> list[Preference]:
        """Return the preferences that changed with this new decision.

        A value of None withdraws a preference that may have followed from earlier decisions.
        """


class ByQuestion:
    """Preferences of a kind whose questions are independent of each other.

    Args:
        derive: returns the preferences that follow from a decision.
    """

    def __init__(self, derive: Callable[[Answered], list[Preference]]) -> None:
        self._derive = derive

    def changes(self, answered: Answered) -> list[Preference]:
        """Return the preferences that follow from the decision."""
        return self._derive(answered)

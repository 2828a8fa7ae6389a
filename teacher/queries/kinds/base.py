"""Interface between the trainer and one kind of question."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.errors import ConfigError
from teacher.queries.judges import Judge, ScriptedTeacher
from teacher.queries.selection import Ensemble, select_groups
from teacher.settings.options import KindName, QueryConfig
from teacher.settings.teachers import Perceived

Decided = tuple[str, float | None]
"""Answer to a question, and the probability that a pair's first segment is better; None for other kinds."""


class Kind(ABC):
    """Kind of question: which segments are asked about, how a judge answers, and what follows.

    Attributes:
        name: name in settings and files.
        size: number of segments in a question.
        question: sentence to ask people in a terminal or notebook.
        prompt: keys to type for each answer.
    """

    name: ClassVar[KindName]
    size: ClassVar[int]
    question: ClassVar[str]
    prompt: ClassVar[str]

    def select(
        self, pool: SegmentPool, count: int, config: QueryConfig | None, predictor: Ensemble | None, /
    ) -> Sequence[tuple[Segment, ...]]:
        """Select the items of up to ``count`` questions, and mark them as queried in the pool."""
        return select_groups(pool, self.size, count, config, predictor)

    @abstractmethod
    def judge(self, judge: Judge, items: Sequence[Segment]) -> Decided:
        """Return a judge's answer to a question.

        Raises:
            BehaviorError: the judge failed, or returned neither a decision nor a probability.
            ConfigError: the judge can only compare two segments.
            UndecidedError: a scripted teacher skipped too many questions in a row.
        """

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


def perceive(judge: Judge, items: Sequence[Segment], kind: KindName) -> Perceived | None:
    """Return a scripted teacher's view of a question's items, or None for "can't tell"."""
    if not isinstance(judge, ScriptedTeacher):
        raise ConfigError(
            f"{kind} questions need a scripted teacher, because other judges compare two segments; use "
            'ScriptedTeacher, or feedback="pair"'
        )
    return judge.perceive(items)

"""Kinds of questions: what is asked about segments, and which preferences follow from the answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules

from teacher.data.decisions import CANT_TELL
from teacher.data.ledger import Answered, Ledger
from teacher.data.preferences import Preference
from teacher.errors import DataError
from teacher.queries.kinds.base import Kind
from teacher.settings.options import ASKED, FeedbackName

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
KINDS: Mapping[str, Kind] = {name: Kind.named[name]() for name in ASKED}


def kinds_of(feedback: FeedbackName) -> Sequence[Kind]:
    """Return the kinds of the questions that a run asks."""
    return tuple(KINDS.values()) if feedback == "study" else (KINDS[feedback],)


class Follower:
    """Derives preferences from a ledger's decisions, of all kinds of questions.

    Args:
        from_start: True to derive the preferences of decisions that are already in the ledger too.
    """

    def __init__(self, ledger: Ledger, *, from_start: bool = False) -> None:
        self._ledger = ledger
        self._implied = {name: kind.follow(ledger, from_start=from_start) for name, kind in KINDS.items()}

    def changes(self, answered: Iterable[Answered]) -> Iterator[Preference]:
        """Yield the preferences that changed with these new decisions.

        A value of None withdraws a preference.

        Raises:
            DataError: a question is of an unknown kind or has an unknown answer, or the ledger is damaged.
        """
        for each in answered:
            if each.kind not in self._implied:
                raise DataError(
                    f"{self._ledger.path} has questions of the kind {each.kind}, but this RL-Teacher knows "
                    f"only {', '.join(KINDS)}; update RL-Teacher"
                )
            if each.decision not in {None, CANT_TELL, *KINDS[each.kind].answers}:
                raise DataError(
                    f"{self._ledger.path} has the answer {each.decision} to a {each.kind} question, but the "
                    f"answers are {', '.join(KINDS[each.kind].answers)} and {CANT_TELL}; update RL-Teacher"
                )
            yield from self._implied[each.kind].changes(each)


def preferences_in(ledger: Ledger) -> Iterator[Preference]:
    """Yield the preferences that follow from all answers in a ledger, oldest decision first.

    The file is read lazily in small batches, except for ratings.

    Raises:
        DataError: a question is of an unknown kind, or the ledger is damaged.
    """
    return Follower(ledger, from_start=True).changes(ledger.answered())

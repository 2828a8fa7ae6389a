"""Interface between the site and one kind of question. Independent of the database."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

CANT_TELL = "cant_tell"
CANT_TELL_TEXT = _("Can’t tell")
ITEMS = ("first", "second", "third", "fourth")
"""Names of a question's items, in order."""
_SAME = 1e-9  # weights closer than this differ only by rounding

_Item = TypeVar("_Item")


class Kind(ABC):
    """Kind of question.

    A labeler's choice is in the screen's terms, such as ``left``. The answer that it means is in the items'
    terms, such as ``first``. The two differ if the items are shown in reverse order (``swapped``).

    Attributes:
        all: all kinds.
        name: name in the database, in the REST API and in exported tables.
        order: place among the kinds in lists and studies.
        title: name on researchers' pages.
        size: number of clips in a question.
        item_names: what its items are called on researchers' pages, in order.
        texts: each answer but "can't tell", with its text.
        choice_texts: what each of ``texts`` is called on a screen with the items in order, with its text.
        sentences: choices whose text doesn't say enough on its own, with one that does.
        stacked_sentences: those that differ where one clip is above the other.
        first_share: preference for the first of two items, by answer; None if there are not two items.
        personal: True if answers can only be compared with the same labeler's; trainers get each of them.
    """

    all: ClassVar[list[type["Kind"]]] = []
    name: ClassVar[str]
    order: ClassVar[int]
    title: ClassVar[Promise]
    size: ClassVar[int]
    item_names: ClassVar[Sequence[Promise | str]]
    texts: ClassVar[Mapping[str, Promise | str]]
    choice_texts: ClassVar[Mapping[str, Promise | str]]
    sentences: ClassVar[Mapping[str, Promise | str]] = {}
    stacked_sentences: ClassVar[Mapping[str, Promise | str]] = {}
    first_share: ClassVar[Sequence[float] | None] = None
    personal: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Register the kind, if the class is one."""
        if "name" in vars(cls):
            cls.all.append(cls)

    @property
    def classes(self) -> tuple[str, ...]:
        """Answers that labelers can agree on: all but "can't tell"."""
        return tuple(self.texts)

    @property
    def answers(self) -> Mapping[str, Promise | str]:
        """All answers, with their texts."""
        return {**self.texts, CANT_TELL: CANT_TELL_TEXT}

    @property
    def choices(self) -> Mapping[str, Promise | str]:
        """All choices on a labeler's screen, with their texts."""
        return {**self.choice_texts, CANT_TELL: CANT_TELL_TEXT}

    @property
    def buttons(self) -> Sequence[tuple[str, Promise | str]]:
        """All choices with their texts, in the order of their buttons: "can't tell" is last."""
        return list(self.choices.items())

    def meaning_of(self, choice: str, *, swapped: bool) -> str:
        """Return the answer that a choice means; raises ``KeyError`` if the kind has no such choice."""
        return self._paired(self.choice_texts, self.texts, swapped)[choice]

    def choice_for(self, answer: str, *, swapped: bool) -> str:
        """Return the choice that means an answer; the inverse of :meth:`meaning_of`."""
        return self._paired(self.texts, self.choice_texts, swapped)[answer]

    def _paired(self, keys: Iterable[str], values: Iterable[str], swapped: bool) -> dict[str, str]:
        # The tables are symmetric: in reverse order, the items of the last answer are those of the first.
        order = list(values)[::-1] if swapped and self.size > 1 else values
        return {**dict(zip(keys, order, strict=True)), CANT_TELL: CANT_TELL}

    def best_of(self, answer: str) -> int | None:
        """Return the index of the item that an answer or a choice calls the best, or None."""
        names = next((names for names in (self.classes, tuple(self.choice_texts)) if answer in names), ())
        return self._best_at(names.index(answer)) if names else None

    def _best_at(self, index: int) -> int | None:
        """Return the index of the best item according to the answer at ``index``, or None."""
        share = self.first_share[index] if self.first_share else 0.5
        return None if share == 0.5 else int(share < 0.5)

    def passes(self, answer: str, known: str) -> bool:
        """Return True if an answer to an attention check is close enough to the known answer."""
        return answer == known

    @abstractmethod
    def opposite(self, answer: str) -> str:
        """Return the answer that says the contrary; for some, such as "equal", it is the same."""

    def is_below_chance(self, confusion: Sequence[Sequence[float]]) -> bool:
        """Return True if answers are more often close to the contrary of the truth than to the truth.

        Args:
            confusion: probability of each answer to each true one, which are in rows.
        """
        balance = 0.0
        for truth, row in zip(self.classes, confusion, strict=True):
            for answer, share in zip(self.classes, row, strict=True):
                balance += share * (self.passes(answer, truth) - self.passes(answer, self.opposite(truth)))
        return balance < -_SAME

    @abstractmethod
    def majority(self, votes: Sequence[float]) -> str:
        """Return the answer that follows from the number of votes for each answer, which are not all 0."""

    @abstractmethod
    def most_probable(self, posterior: Sequence[float]) -> str:
        """Return the answer that follows from the probability of each answer."""


class Scale(Kind):
    """Kind whose answers are ordered. Labelers who disagree meet at the median, or next to it, inward."""

    def opposite(self, answer: str) -> str:
        """Return the answer as far from the other end of the scale."""
        return self.classes[-1 - self.classes.index(answer)]

    def majority(self, votes: Sequence[float]) -> str:
        """Return the median of the votes."""
        return self.median(votes)

    def most_probable(self, posterior: Sequence[float]) -> str:
        """Return the most probable answer; of several, their median."""
        highest = max(posterior)
        return self.median([float(each > highest - _SAME) for each in posterior])

    def median(self, weights: Sequence[float]) -> str:
        """Return the median answer; between two answers, the one closer to the middle of the scale."""
        half, below, last = sum(weights) / 2, 0.0, len(weights) - 1
        low = high = last
        for index, weight in enumerate(weights):
            below += weight
            if below >= half and low == last and weight:
                low = index
            if below > half:
                high = index
                break
        between = (low + high) / 2
        return self.classes[round(between + (0.25 if between < last / 2 else -0.25))]


def on_screen(items: Sequence[_Item], *, swapped: bool) -> Sequence[_Item]:
    """Return what belongs to a question's items in the order of the screen, row by row."""
    return items[::-1] if swapped else items

"""Questions about two clips: which one is better, and in graded ones, by how much."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.kinds.base import Scale


class Pair(Scale):
    """Question which of two clips is better."""

    name: ClassVar[str] = "pair"
    order: ClassVar[int] = 1
    title: ClassVar[Promise] = _("pairs")
    size: ClassVar[int] = 2
    item_names: ClassVar[Sequence[Promise | str]] = (_("First"), _("Second"))
    texts: ClassVar[Mapping[str, Promise | str]] = {
        "first": _("First is better"),
        "equal": _("Equal"),
        "second": _("Second is better"),
    }
    choice_texts: ClassVar[Mapping[str, Promise | str]] = {
        "left": _("Left"),
        "equal": _("Equal"),
        "right": _("Right"),
    }
    sentences: ClassVar[Mapping[str, Promise | str]] = {
        "left": _("The left clip is better"),
        "right": _("The right clip is better"),
    }
    stacked_sentences: ClassVar[Mapping[str, Promise | str]] = {
        "left": _("The top clip is better"),
        "right": _("The bottom clip is better"),
    }
    first_share: ClassVar[Sequence[float] | None] = (1.0, 0.5, 0.0)

    @property
    def buttons(self) -> Sequence[tuple[str, Promise | str]]:
        """All choices with their texts, from left to right; "can't tell" is next to "equal"."""
        *choices, cant_tell = self.choices.items()
        middle = 1 + len(choices) // 2
        return [*choices[:middle], cant_tell, *choices[middle:]]

    def majority(self, votes: Sequence[float]) -> str:
        """Return the item with more votes; ``equal`` if both have the same number."""
        first, _equal, second = votes
        return "equal" if first == second else "first" if first > second else "second"


class Graded(Pair):
    """Question which of two clips is better, clearly or slightly."""

    name: ClassVar[str] = "graded"
    order: ClassVar[int] = 2
    title: ClassVar[Promise] = _("graded pairs")
    texts: ClassVar[Mapping[str, Promise | str]] = {
        "clearly_first": _("First is clearly better"),
        "slightly_first": _("First is slightly better"),
        "equal": _("Equal"),
        "slightly_second": _("Second is slightly better"),
        "clearly_second": _("Second is clearly better"),
    }
    choice_texts: ClassVar[Mapping[str, Promise | str]] = {
        "clearly_left": _("Left, clearly"),
        "slightly_left": _("Left, slightly"),
        "equal": _("Equal"),
        "slightly_right": _("Right, slightly"),
        "clearly_right": _("Right, clearly"),
    }
    sentences: ClassVar[Mapping[str, Promise | str]] = {
        "clearly_left": _("The left clip is clearly better"),
        "slightly_left": _("The left clip is slightly better"),
        "slightly_right": _("The right clip is slightly better"),
        "clearly_right": _("The right clip is clearly better"),
    }
    stacked_sentences: ClassVar[Mapping[str, Promise | str]] = {
        "clearly_left": _("The top clip is clearly better"),
        "slightly_left": _("The top clip is slightly better"),
        "slightly_right": _("The bottom clip is slightly better"),
        "clearly_right": _("The bottom clip is clearly better"),
    }
    first_share: ClassVar[Sequence[float] | None] = (1.0, 1.0, 0.5, 0.0, 0.0)

    def passes(self, answer: str, known: str) -> bool:
        """Return True if both answers prefer the same item, however clearly."""
        return answer in self.texts and self.best_of(answer) == self.best_of(known)

    def majority(self, votes: Sequence[float]) -> str:
        """Return the median of the votes."""
        return self.median(votes)

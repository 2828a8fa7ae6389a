"""Questions about four clips, of which the best and the worst are chosen (best-worst scaling)."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.kinds.base import CANT_TELL, Kind

_TEXTS = {
    f"{best}>{worst}": format_lazy(_("Best: {best}, worst: {worst}"), best=best, worst=worst)
    for best, worst in permutations(range(1, 5), 2)
}


class BestWorst(Kind):
    """Question which of four clips is the best, and which the worst.

    An answer such as ``1>4`` has the numbers of the best and the worst item, a choice those of their places
    on the screen, row by row.
    """

    name: ClassVar[str] = "best_worst"
    order: ClassVar[int] = 4
    title: ClassVar[Promise] = _("best and worst of four")
    size: ClassVar[int] = 4
    item_names: ClassVar[Sequence[Promise | str]] = ("1", "2", "3", "4")
    texts: ClassVar[Mapping[str, Promise | str]] = _TEXTS
    choice_texts: ClassVar[Mapping[str, Promise | str]] = _TEXTS

    def _best_at(self, index: int) -> int | None:
        return int(self.classes[index][0]) - 1

    def passes(self, answer: str, known: str) -> bool:
        """Return True if the best or the worst item is right, and neither is taken for the other."""
        if answer == CANT_TELL:
            return False
        (best, worst), (known_best, known_worst) = answer.split(">"), known.split(">")
        return (best == known_best or worst == known_worst) and best != known_worst and worst != known_best

    def opposite(self, answer: str) -> str:
        """Return the answer that takes the best for the worst and vice versa."""
        return ">".join(reversed(answer.split(">")))

    def majority(self, votes: Sequence[float]) -> str:
        """Return the item called the best most often, less how often it was called the worst, and vice versa.

        If all items are called both equally often, the answer is ``cant_tell``.
        """
        scores = [0.0] * self.size
        for answer, weight in zip(self.classes, votes, strict=True):
            best, worst = (int(number) - 1 for number in answer.split(">"))
            scores[best] += weight
            scores[worst] -= weight
        if max(scores) == min(scores):
            return CANT_TELL
        return f"{scores.index(max(scores)) + 1}>{scores.index(min(scores)) + 1}"

    def most_probable(self, posterior: Sequence[float]) -> str:
        """Return the answer that follows from the probability of each answer, as from votes."""
        return self.majority(posterior)

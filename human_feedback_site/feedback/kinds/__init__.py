"""Kinds of questions: how many clips are shown, which answers there are, and what they mean."""

from collections.abc import Mapping

from human_feedback_site.feedback.kinds.base import CANT_TELL, ITEMS, Kind, on_screen
from human_feedback_site.feedback.kinds.best_worst import BestWorst
from human_feedback_site.feedback.kinds.pair import Graded, Pair
from human_feedback_site.feedback.kinds.rating import Rating

PAIR = Pair()
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (PAIR, Graded(), Rating(), BestWorst())}

__all__ = ["CANT_TELL", "ITEMS", "KINDS", "PAIR", "Kind", "answers_of_all", "choices_of_all", "on_screen"]


def answers_of_all() -> list[str]:
    """Return the answers of all kinds, without duplicates."""
    return list(dict.fromkeys(answer for kind in KINDS.values() for answer in kind.answers))


def choices_of_all() -> list[str]:
    """Return the choices of all kinds, without duplicates."""
    return list(dict.fromkeys(choice for kind in KINDS.values() for choice in kind.choices))

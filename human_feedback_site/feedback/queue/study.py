"""Order of the kinds of questions in a study that compares them."""

from collections.abc import Sequence

from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Participation
from human_feedback_site.feedback.queue.participants import Participant

BLOCK = 10
"""Number of questions of one kind that a labeler gets in a row."""


def turns_of(who: Participant, ordinals: Sequence[int]) -> Sequence[str]:
    """Return the kind whose turn it is at each position; nothing if the experiment is no study.

    Args:
        ordinals: zero-based positions of the questions in the labeler's sequence.
    """
    if not who.compares_kinds:
        return ()
    earlier = Participation.objects.filter(experiment=who.experiment, pk__lt=who.participation).count()
    return [kind_at(earlier, ordinal) for ordinal in ordinals]


def kind_at(labeler: int, ordinal: int) -> str:
    """Return the kind at a position in the sequence of the labeler with this number, both counted from 0."""
    orders = balanced_orders(len(KINDS))
    order = orders[labeler % len(orders)]
    return tuple(KINDS)[order[ordinal // BLOCK % len(order)]]


def balanced_orders(count: int) -> list[list[int]]:
    """Return orders in which each number is equally often in each place and before each other.

    Neither practice nor the kind before favors one of the kinds, then (Williams, 1949).
    """
    zigzag = [(place + 1) // 2 if place % 2 else -place // 2 for place in range(count)]
    orders = [[(start + step) % count for step in zigzag] for start in range(count)]
    return orders if count % 2 == 0 else [*orders, *(order[::-1] for order in orders)]

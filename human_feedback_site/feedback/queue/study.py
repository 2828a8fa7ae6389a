"""Order of the kinds of questions in a study that compares them."""

from collections.abc import Sequence

from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Participation
from human_feedback_site.feedback.queue.participants import Participant

BLOCK = 10
"""Number of questions of one kind that a labeler gets in a row."""
# Order of the kinds for each of four labelers. Each kind is once in each place and once before each other
# (a balanced Latin square: Williams, 1949), so neither practice nor the kind before favors one of them.
ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))


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
    order = ORDERS[labeler % len(ORDERS)]
    return tuple(KINDS)[order[ordinal // BLOCK % len(order)]]

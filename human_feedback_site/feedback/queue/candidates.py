"""Search for comparisons to lease: the next ones in the queue, and an attention check if one is due."""

from collections.abc import Sequence
from dataclasses import dataclass

from human_feedback_site.feedback.models import Comparison, Lease
from human_feedback_site.feedback.queue.attention_checks import Check, due_check, find_check_pair
from human_feedback_site.feedback.queue.participants import Participant
from human_feedback_site.feedback.queue.sql import lock_free


@dataclass(frozen=True)
class Candidate:
    """A comparison that may be leased, and the purpose of the lease."""

    comparison: Comparison
    purpose: str = Lease.Purpose.JUDGE


@dataclass(frozen=True)
class Candidates:
    """Result of :func:`find_candidates` for one labeler.

    Attributes:
        asked: number of comparisons requested.
        queue: up to ``asked`` comparisons from the queue, in judging order; their rows are locked.
        check: the attention check that is due, and its comparison; None if no check is due or available.
    """

    asked: int
    queue: Sequence[Comparison]
    check: tuple[Check, Comparison] | None

    @property
    def is_all(self) -> bool:
        """True if the queue has no further comparisons for the labeler."""
        return len(self.queue) < self.asked

    def choose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates, including the check unless its position is already filled.

        If ``count`` is less than ``asked``, the first ``asked - count`` positions are considered filled by
        leases that the labeler already has. The check's index is reduced by that number.
        """
        count = max(0, min(count, self.asked))
        queue = [Candidate(comparison) for comparison in self.queue[:count]]
        if self.check is not None:
            check, comparison = self.check
            place = check.place - (self.asked - count)
            if place >= 0:
                return [*queue[:place], Candidate(comparison, check.purpose), *queue[place : count - 1]]
        return queue


def find_candidates(who: Participant, count: int, *, holds: int = 0, but: Sequence[int] = ()) -> Candidates:
    """Find up to ``count`` comparisons for a labeler; lock those that come from the queue.

    Args:
        who: the labeler.
        count: number of comparisons wanted; 0 or less returns no candidates.
        holds: number of leases the labeler already has; new leases get the positions after them.
        but: IDs of comparisons to exclude.
    """
    if count <= 0:
        return Candidates(0, (), None)
    found = lock_free(who.experiment, who.labeler, count + len(but))
    queue = [comparison for comparison in found if comparison.pk not in but][:count]
    first = who.judged + holds
    check = due_check(who, range(first, first + count))
    comparison = find_check_pair(who, check.purpose) if check else None
    return Candidates(count, queue, (check, comparison) if check and comparison else None)

"""Comparisons that could be leased to a labeler: those next in the queue, and a check where one is due."""

from collections.abc import Sequence
from dataclasses import dataclass

from human_feedback_site.feedback.models import Comparison, Lease
from human_feedback_site.feedback.queue.attention_checks import Check, due_check, find_check_pair
from human_feedback_site.feedback.queue.participants import Participant
from human_feedback_site.feedback.queue.sql import lock_free


@dataclass(frozen=True)
class Candidate:
    """A comparison that may be leased, and what its answer would be for."""

    comparison: Comparison
    purpose: str = Lease.Purpose.JUDGE


@dataclass(frozen=True)
class Candidates:
    """What was found for a labeler.

    Attributes:
        asked: how many pairs were looked for.
        queue: as many at most, in the order in which they should be judged; they are locked.
        check: a check that is due, and its pair.
    """

    asked: int
    queue: Sequence[Comparison]
    check: tuple[Check, Comparison] | None

    @property
    def is_all(self) -> bool:
        """Whether there is no more in the queue."""
        return len(self.queue) < self.asked

    def choose(self, count: int) -> list[Candidate]:
        """Return ``count`` pairs at most, a check among them where one is due.

        Where fewer are chosen than were looked for, the labeler holds pairs in the place of the first.
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
    """Look for ``count`` pairs for a labeler who ``holds`` some already, and lock those of the queue.

    ``but`` are comparisons that are not to be given.
    """
    if count <= 0:
        return Candidates(0, (), None)
    found = lock_free(who.experiment, who.labeler, count + len(but))
    queue = [comparison for comparison in found if comparison.pk not in but][:count]
    first = who.judged + holds
    check = due_check(who, range(first, first + count))
    comparison = find_check_pair(who, check.purpose) if check else None
    return Candidates(count, queue, (check, comparison) if check and comparison else None)

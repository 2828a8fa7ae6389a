"""Pairs that are shown to learn something about their labeler: gold, whose answer is known, and repeats.

Labelers cannot tell them from others: they come in the place of others, at a moment drawn for each labeler.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.crypto import salted_hmac

from human_feedback_site.feedback.models import Lease
from human_feedback_site.feedback.queue.claims import Participant

_ROUNDING = 1e-9
REPEAT_AFTER = 10  # other answers at least, so that it is not simply remembered


@dataclass(frozen=True)
class Check:
    """A check that is due, and its place among the pairs that are given together."""

    purpose: str
    place: int


def due_check(who: Participant, ordinals: Sequence[int]) -> Check | None:
    """Say which check, if any, is due among the pairs that a labeler sees as its n-th."""
    rates = {Lease.Purpose.GOLD: who.gold_rate, Lease.Purpose.REPEAT: who.repeat_rate}
    for place, ordinal in enumerate(ordinals):
        for purpose, rate in rates.items():
            if falls_due(rate, ordinal, f"{purpose}/{who.participation}"):
                return Check(purpose, place)
    return None


def falls_due(rate: float, ordinal: int, secret: str) -> bool:
    """Say whether one of each ``1 / rate`` ordinals is this one: which of them, only the site knows."""
    if rate <= 0:
        return False
    stretch = math.floor(ordinal * rate + _ROUNDING)
    begin, end = (math.ceil(number / rate - _ROUNDING) for number in (stretch, stretch + 1))
    return ordinal == begin + math.floor(_drawn(f"{secret}/{stretch}") * (end - begin))


def _drawn(secret: str) -> float:
    """Return a number in [0, 1) that only this site can compute."""
    digest = salted_hmac("feedback.checks", secret, algorithm="sha256").digest()
    return int.from_bytes(digest[:6], "big") / 2**48


# In an order of its own for each labeler.
_GOLD = """
    SELECT 'gold' AS kind, {no_lease}, {pair} FROM feedback_comparison c
    WHERE c.experiment_id = %s AND c.status = 'gold'
      AND 0 = (SELECT COUNT(*) FROM feedback_label a WHERE a.comparison_id = c.id AND a.labeler_id = %s)
      AND NOT {held_by}
    ORDER BY (c.id * 7919 + CAST(%s AS bigint) * 104729) %% 1009, c.id
    LIMIT 1"""
_REPEAT = """
    SELECT 'repeat' AS kind, {no_lease}, {pair}
    FROM feedback_label b JOIN feedback_comparison c ON c.id = b.comparison_id
    WHERE b.labeler_id = %s AND b.status = 'counted' AND c.experiment_id = %s AND c.status <> 'cancelled'
      AND 0 = (SELECT COUNT(*) FROM feedback_undo u WHERE u.label_id = b.id)
      AND 0 = (
        SELECT COUNT(*) FROM feedback_label a
        WHERE a.comparison_id = c.id AND a.labeler_id = b.labeler_id AND a.status = 'repeat')
      AND NOT {held_by}
    ORDER BY b.created_at DESC
    LIMIT 1 OFFSET {skipped}""".replace("{skipped}", str(REPEAT_AFTER))


def check_pair(who: Participant, purpose: str) -> tuple[str, Sequence[int]]:
    """Return what finds a pair for a check, if there is one that would tell something, and its values."""
    if purpose == Lease.Purpose.GOLD:
        return _GOLD, [who.experiment, who.labeler, who.labeler, who.labeler]
    return _REPEAT, [who.labeler, who.experiment, who.labeler]

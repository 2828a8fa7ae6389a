"""Pairs that are shown to learn something about their labeler: gold, whose answer is known, and repeats.

Labelers cannot tell them from others: they come in the place of others, at a moment drawn for each labeler.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Exists, F, Max, OuterRef, Value
from django.utils.crypto import salted_hmac

from human_feedback_site.feedback.models import Comparison, Label, Lease
from human_feedback_site.feedback.models.querysets import live_leases
from human_feedback_site.feedback.queue.participants import Participant

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


def find_check_pair(who: Participant, purpose: str) -> Comparison | None:
    """Return a pair for a check, if there is one that would tell something about the labeler."""
    held = Lease.objects.filter(live_leases(), comparison=OuterRef("pk"), labeler=who.labeler)
    own = Label.objects.filter(comparison=OuterRef("pk"), labeler=who.labeler)
    of_experiment = Comparison.objects.filter(~Exists(held), experiment=who.experiment)
    if purpose == Lease.Purpose.GOLD:
        order = (F("pk") * 7919 + Value(who.labeler * 104729)) % 1009  # one of its own for each labeler
        gold = of_experiment.filter(~Exists(own), status=Comparison.Status.GOLD)
        return gold.order_by(order, "pk").first()
    newest = Max("labels__created_at")
    judged = of_experiment.filter(
        ~Exists(own.filter(status=Label.Status.REPEAT)),
        labels__labeler=who.labeler,
        labels__status=Label.Status.COUNTED,
        labels__undo=None,
    ).exclude(status=Comparison.Status.CANCELLED)
    return judged.annotate(answered_at=newest).order_by("-answered_at")[REPEAT_AFTER:].first()

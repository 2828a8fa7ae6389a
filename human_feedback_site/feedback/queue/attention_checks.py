"""Attention checks: comparisons with a known answer (gold), and repeats of the labeler's own comparisons.

Labelers can't tell checks from other comparisons. Each labeler sees them at different, random positions.
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
REPEAT_AFTER = 10  # minimum number of answers in between, so that labelers don't remember the first one


@dataclass(frozen=True)
class Check:
    """An attention check that is due."""

    purpose: str  # ``Lease.Purpose.GOLD`` or ``Lease.Purpose.REPEAT``
    place: int  # zero-based index of the check within the batch of comparisons to be leased


def due_check(who: Participant, ordinals: Sequence[int]) -> Check | None:
    """Return the first attention check that is due at one of these positions, or None.

    ``ordinals`` are the zero-based positions that the comparisons to be leased will have in the labeler's
    sequence of comparisons in the experiment.
    """
    rates = {Lease.Purpose.GOLD: who.gold_rate, Lease.Purpose.REPEAT: who.repeat_rate}
    for place, ordinal in enumerate(ordinals):
        for purpose, rate in rates.items():
            if falls_due(rate, ordinal, f"{purpose}/{who.participation}"):
                return Check(purpose, place)
    return None


def falls_due(rate: float, ordinal: int, secret: str) -> bool:
    """Return True if a check is due at position ``ordinal``.

    In each block of about ``1 / rate`` consecutive positions, exactly one is chosen pseudorandomly, based on
    ``SECRET_KEY`` and ``secret``.
    """
    if rate <= 0:
        return False
    stretch = math.floor(ordinal * rate + _ROUNDING)
    begin, end = (math.ceil(number / rate - _ROUNDING) for number in (stretch, stretch + 1))
    return ordinal == begin + math.floor(_drawn(f"{secret}/{stretch}") * (end - begin))


def _drawn(secret: str) -> float:
    digest = salted_hmac("feedback.checks", secret, algorithm="sha256").digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def find_check_pair(
    who: Participant, purpose: str, kinds: Sequence[str], but: Sequence[int] = ()
) -> Comparison | None:
    """Return a comparison for a check of this labeler, or None if there is none.

    A gold comparison must be new to the labeler. A repeat is the labeler's most recent comparison that has
    not been repeated yet and was followed by at least ``REPEAT_AFTER`` others. Comparisons that the labeler
    has a live lease on, and those whose IDs are in ``but``, are left out.
    """
    held = Lease.objects.filter(live_leases(), comparison=OuterRef("pk"), labeler=who.labeler)
    own = Label.objects.filter(comparison=OuterRef("pk"), labeler=who.labeler)
    every = Comparison.objects.filter(experiment=who.experiment, kind__in=kinds)
    of_experiment = every.exclude(pk__in=but).filter(~Exists(held))
    if purpose == Lease.Purpose.GOLD:
        order = (F("pk") * 7919 + Value(who.labeler * 104729)) % 1009  # a different order for each labeler
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

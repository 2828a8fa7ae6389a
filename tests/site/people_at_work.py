"""Labelers who ask and answer through the services, many steps a second."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db.models.functions import Now

from human_feedback_site.feedback.kinds import PAIR
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
)
from human_feedback_site.feedback.queue.leases import LeaseGrant, LeaseRequest, lease_comparisons
from human_feedback_site.feedback.queue.participants import answered_lease, participant_of
from human_feedback_site.feedback.services import accounts, answers, experiments
from tests.site.conftest import RUN


def begin(owner: User, pairs: int, labelers: int) -> tuple[Experiment, list[Comparison], list[Labeler]]:
    """An experiment whose majority decides, its open pairs, and its labelers, who have asked once."""
    facts = {**RUN, "aggregation": "majority"}
    experiment, _ = experiments.put_experiment(owner, "hopper", uuid4(), facts)
    comparisons = [
        Comparison(
            uuid=uuid4(),
            experiment=experiment,
            phase="training",
            step=1,
            priority=1,
            first_key="hopper/first.mp4",
            second_key="hopper/second.mp4",
        )
        for _ in range(pairs)
    ]
    people = [accounts.invite(experiment, f"labeler-{number}") for number in range(labelers)]
    for person in people:
        accounts.participation_of(person, experiment)
    return experiment, Comparison.objects.bulk_create(comparisons), people


def ask(labeler: Labeler, experiment: Experiment, count: int = 5, held: Sequence[UUID] = ()) -> LeaseGrant:
    who = participant_of(accounts.participation_in(labeler.user, experiment.name))
    return lease_comparisons(who, LeaseRequest(count, held=held, shown=held[0] if held else None))


def answer(labeler: Labeler, lease: UUID, outcome: str) -> UUID:
    """Answer a lease as somebody does who sees its clips; return the answer's UUID."""
    swapped = Lease.objects.get(uuid=lease).swapped
    given = answers.Answer(uuid4(), lease, PAIR.choice_for(outcome, swapped=swapped), response_ms=900)
    answers.record_answer(answered_lease(labeler, lease), given)
    _tick()
    return given.uuid


def undo(labeler: Labeler, label: UUID) -> Lease | None:
    return answers.record_undo(labeler, label, uuid4())[1]


def expire(**which: Any) -> None:
    """Let leases expire, by the database's clock."""
    Lease.objects.filter(expires_at__gt=Now(), **which).update(expires_at=Now())


def standing_labels() -> list[Label]:
    """All labels that count for something, in the order of their arrival."""
    found = Label.objects.filter(undo=None).exclude(status=Label.Status.VOID)
    return list(found.select_related("lease", "labeler").order_by("pk"))


def _tick() -> None:
    """Wait for the next millisecond: SQLite's clock tells no less, and nobody undoes an answer as fast."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass

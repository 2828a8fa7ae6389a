"""Answers of labelers: appended, counted where there is room, withdrawn by appending too.

Each transaction takes its locks in the same order: the comparison, its leases, and last the experiment's
sequence counter, whose lock is held until the commit. So decisions become visible in the order of their
numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Now

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
    Outcome,
    SequenceCounter,
    Undo,
)
from human_feedback_site.feedback.services.leases import grant, live

_FIRST_PREFERRED = {Outcome.FIRST: 1.0, Outcome.EQUAL: 0.5, Outcome.SECOND: 0.0}


@dataclass(frozen=True)
class Answer:
    """An answer as the browser sends it, and may send it again."""

    uuid: UUID
    lease: UUID
    choice: str
    response_ms: int | None
    shown_ms: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The outcome of some labels; both None where there are none."""

    decision: str | None
    probability: float | None
    n_labels: int


def record_answer(labeler: Labeler, answer: Answer) -> tuple[Label, bool]:
    """Append an answer, whether its lease is still live or not; return it and whether it is new.

    Raises :class:`NotFoundError` for a lease that is not the labeler's, :class:`ConflictError` where the UUID
    is known with other content.
    """
    try:
        with transaction.atomic():
            return _record(labeler, answer)
    except IntegrityError:  # the same UUID arrived a moment ago for another comparison
        raise ConflictError(f"The label {answer.uuid} is already recorded with other content.") from None


def _record(labeler: Labeler, answer: Answer) -> tuple[Label, bool]:
    lease = Lease.objects.filter(uuid=answer.lease, labeler=labeler).first()
    if lease is None:
        raise NotFoundError(f"There is no lease {answer.lease} of yours.")
    comparison = _lock(lease.comparison_id)
    labels = list(comparison.labels.select_related("undo"))
    known = next((label for label in labels if label.uuid == answer.uuid), None)
    if known is not None:
        if (known.lease_id, known.choice, known.response_ms) != (lease.pk, answer.choice, answer.response_ms):
            raise ConflictError(f"The label {answer.uuid} is already recorded with other content.")
        return known, False
    standing = [label for label in labels if not hasattr(label, "undo")]
    counts = _has_room_for(comparison, labeler, standing)
    label = Label.objects.create(
        uuid=answer.uuid,
        lease=lease,
        comparison=comparison,
        labeler=labeler,
        choice=answer.choice,
        swapped=lease.swapped,
        response_ms=answer.response_ms,
        shown_ms=answer.shown_ms,
        status=Label.Status.COUNTED if counts else Label.Status.SURPLUS,
    )
    own = Lease.objects.filter(comparison=comparison, labeler=labeler, released_at=None)
    own.update(released_at=Now())
    if counts:
        _decide(comparison, [*standing, label])
    return label, True


def _has_room_for(comparison: Comparison, labeler: Labeler, standing: Sequence[Label]) -> bool:
    """Say whether a label would count: it is wanted, takes nobody's place and is the labeler's only one."""
    if comparison.status != Comparison.Status.OPEN:
        return False
    if any(label.labeler_id == labeler.pk for label in standing):
        return False
    others = Lease.objects.filter(live(), comparison=comparison).exclude(labeler=labeler).count()
    return comparison.n_labels + others < comparison.experiment.overlap


@transaction.atomic
def record_undo(labeler: Labeler, label_uuid: UUID, undo_uuid: UUID) -> tuple[Undo, Lease | None, bool]:
    """Withdraw an answer and give the pair back to its labeler.

    Returns the undo, the lease by which the labeler now has the pair again (None where there is none, or none
    any more), and whether the undo is new. Raises :class:`NotFoundError` for a label that is not the
    labeler's, :class:`ConflictError` where the label is undone already or the UUID has another use.
    """
    label = Label.objects.filter(uuid=label_uuid, labeler=labeler).first()
    if label is None:
        raise NotFoundError(f"There is no label {label_uuid} of yours.")
    comparison = _lock(label.comparison_id)
    known = Undo.objects.filter(label=label).first()
    if known is not None and known.uuid == undo_uuid:
        still = Lease.objects.select_related("comparison").filter(live(), pk=known.lease_id or 0)
        return known, still.first(), False
    if known is not None or Undo.objects.filter(uuid=undo_uuid).exists():
        raise ConflictError(f"The label {label_uuid} is undone already, or this uuid is taken.")
    counted = label.status == Label.Status.COUNTED
    lease = _give_back(comparison, label) if counted else None
    undo = Undo.objects.create(uuid=undo_uuid, label=label, lease=lease)
    if counted:
        _decide(comparison, list(comparison.labels.filter(undo=None)))
    return undo, lease, True


def _give_back(comparison: Comparison, label: Label) -> Lease | None:
    """Lease the pair, on the same sides, to the labeler whose counted label left its place."""
    if comparison.experiment.state != Experiment.State.RUNNING:
        return None
    return grant(comparison, label.labeler, swapped=label.swapped, shown=True)


def _lock(comparison_id: int) -> Comparison:
    # The experiment is read afterwards: joined, it would show the overlap as it was before the wait.
    return Comparison.objects.select_for_update(no_key=True).get(pk=comparison_id)


def _decide(comparison: Comparison, standing: Sequence[Label]) -> None:
    """Append what the standing labels of a locked comparison now say, under the experiment's next number."""
    verdict = verdict_of([label.verdict for label in standing if label.status == Label.Status.COUNTED])
    comparison.n_labels = verdict.n_labels
    enough = verdict.n_labels >= comparison.experiment.overlap
    comparison.status = Comparison.Status.ANSWERED if enough else Comparison.Status.OPEN
    comparison.save(update_fields=["n_labels", "status"])
    counter = SequenceCounter.objects.filter(experiment=comparison.experiment_id)
    counter.update(last_seq=F("last_seq") + 1)
    Decision.objects.create(
        experiment=comparison.experiment,
        comparison=comparison,
        seq=counter.get().last_seq,
        **vars(verdict),
    )


def verdict_of(outcomes: list[Outcome]) -> Verdict:
    """Return what several labels say together: the mean of those that have an opinion, else ``cant_tell``."""
    votes = [_FIRST_PREFERRED[outcome] for outcome in outcomes if outcome in _FIRST_PREFERRED]
    if not votes:
        return Verdict(Outcome.CANT_TELL if outcomes else None, None, len(outcomes))
    probability = sum(votes) / len(votes)
    if probability == _FIRST_PREFERRED[Outcome.EQUAL]:
        return Verdict(Outcome.EQUAL, probability, len(outcomes))
    return Verdict(Outcome.FIRST if probability > 0.5 else Outcome.SECOND, probability, len(outcomes))

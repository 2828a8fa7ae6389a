"""Recording and undoing of labelers' answers.

Labels and undos are append-only. A label is counted if its comparison still wants labels. A label is void if
its labeler was stopped or has already answered the question without withdrawing that answer. Void labels are
stored but ignored. ``docs/leases.md`` lists the rules.

Each transaction locks rows in the same order: the comparison, the labeler's leases, the labeler's other rows,
and finally the experiment's sequence counter, which stays locked until the commit.
"""

from dataclasses import dataclass
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.kinds import CANT_TELL, KINDS
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
    Undo,
)
from human_feedback_site.feedback.models.querysets import live_leases, not_undone
from human_feedback_site.feedback.queue.leases import end_leases, grant_again
from human_feedback_site.feedback.queue.participants import AnsweredLease, answered_lease
from human_feedback_site.feedback.queue.sql import lock_comparison, lock_participation
from human_feedback_site.feedback.services import parts, webhooks
from human_feedback_site.feedback.services.accounts import participation_of
from human_feedback_site.feedback.services.decisions import (
    COUNTED_FIELDS,
    announce,
    confusions_in,
    count_anew,
    labels_of,
    promote,
)


@dataclass(frozen=True)
class Answer:
    """An answer as sent by the browser, which may send it again after a network error."""

    uuid: UUID
    lease: UUID
    choice: str
    response_ms: int | None
    shown_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class RecordedAnswer:
    """Result of recording an answer."""

    uuid: UUID
    # ``counted`` or ``surplus``, as shown to the labeler. Checks are shown as counted; void answers are shown
    # as surplus
    status: str
    answered: int  # number of the labeler's valid answers under the current invitation
    created: bool  # True if the answer is new, False if it had already been recorded


def record_answer(lease: AnsweredLease, answer: Answer) -> RecordedAnswer:
    """Record an answer, even if its lease has expired; idempotent. Raises ConflictError and NotFoundError."""
    try:
        with transaction.atomic():
            return _record(lease, answer)
    except IntegrityError:  # the UUID is already recorded, or the lease was deleted just now
        known = Label.objects.filter(uuid=answer.uuid).first()
    if known is None:
        raise NotFoundError(_("Lease %(uuid)s no longer exists.") % {"uuid": answer.lease})
    if (known.lease_id, known.choice, known.response_ms) != (lease.pk, answer.choice, answer.response_ms):
        raise ConflictError(
            _("Label %(uuid)s is already recorded with different content.") % {"uuid": answer.uuid}
        )
    own = Participation.objects.get(labeler=lease.labeler, experiment=lease.experiment)
    return RecordedAnswer(answer.uuid, _status_shown(known.status), own.part_answered, created=False)


def _status_shown(status: str) -> str:
    counts_for_nothing = status in {Label.Status.SURPLUS, Label.Status.VOID}
    return Label.Status.SURPLUS if counts_for_nothing else Label.Status.COUNTED


def _record(lease: AnsweredLease, answer: Answer) -> RecordedAnswer:
    comparison = lock_comparison(lease.comparison)  # so that concurrent answers wait for each other
    end_leases(Lease.objects.filter(comparison=comparison, labeler=lease.labeler))
    participation, judged = lock_participation(lease.labeler, lease.experiment, comparison.pk)
    status = _status_of(lease, comparison, participation, judged=judged)
    if status == Label.Status.COUNTED and lease.is_model:
        status = _status_of_models(answer.choice, comparison, participation.share)
    label = Label.objects.create(
        uuid=answer.uuid,
        lease_id=lease.pk,
        comparison=comparison,
        labeler_id=lease.labeler,
        choice=answer.choice,
        swapped=lease.swapped,
        answer=KINDS[lease.kind].meaning_of(answer.choice, swapped=lease.swapped),
        prompt_version=lease.prompt_version,
        response_ms=answer.response_ms,
        shown_ms=answer.shown_ms,
        reason=answer.reason,
        status=status,
    )
    if status != Label.Status.VOID:
        _count_answer(participation, lease, label)
    if status == Label.Status.COUNTED:
        _count_label(comparison, lease, label)
    return RecordedAnswer(answer.uuid, _status_shown(status), participation.part_answered, created=True)


def _status_of(
    lease: AnsweredLease, comparison: Comparison, participation: Participation, *, judged: bool
) -> str:
    """Return a new answer's status; a labeler may have one standing label per question and kind of check."""
    if participation.stopped_at is not None:
        return Label.Status.VOID
    if lease.purpose != Lease.Purpose.JUDGE:
        checked = Label.objects.filter(
            not_undone(), comparison=comparison, labeler=lease.labeler, status=lease.purpose
        )
        return Label.Status.VOID if checked.exists() else lease.purpose
    if judged:
        return Label.Status.VOID
    is_open = comparison.status == Comparison.Status.OPEN
    return Label.Status.COUNTED if is_open else Label.Status.SURPLUS


def _status_of_models(choice: str, comparison: Comparison, share: float) -> str:
    """Return the status of a model's answer: it counts beside people's, or if the question is left to it.

    If it is unsure, the question stays open for people, unless it decides all.
    """
    people = Label.objects.filter(not_undone(), comparison=comparison, status=Label.Status.COUNTED)
    counts = comparison.is_left_to_models(share) or people.exclude(labeler__kind=Labeler.Kind.MODEL).exists()
    is_sure = share >= 1 or choice != CANT_TELL
    return Label.Status.COUNTED if counts and is_sure else Label.Status.SURPLUS


def _count_label(comparison: Comparison, lease: AnsweredLease, label: Label) -> None:
    labels = labels_of([comparison])[comparison.pk] if comparison.n_labels else [label]
    givers = {each.labeler_id for each in labels}
    confusions = confusions_in(lease.experiment, givers) if lease.weighs_labelers else {}
    verdict = count_anew(lease, comparison, labels, confusions)
    comparison.save(update_fields=COUNTED_FIELDS)
    announce(lease.experiment, comparison.pk, verdict)


def _count_answer(participation: Participation, lease: AnsweredLease, label: Label) -> None:
    """Add an answer to the locked participation, and stop the labeler if too many checks have failed."""
    participation.answers += 1
    if participation.elsewhere is not None and participation.invite_id != lease.invite:
        participation.elsewhere += 1
        parts.add_elsewhere(participation.pk, lease.invite, 1)
    if lease.purpose == Lease.Purpose.GOLD or lease.min_watch_ms:
        _note_checks(participation, lease, label)
    is_stopped = participation.failures >= lease.stop_failures
    if is_stopped:
        participation.stopped_at = Now()
    participation.save(update_fields=["answers", "elsewhere", "gold_checks", "watch_checks", "stopped_at"])
    if is_stopped:
        webhooks.announce_blocked(participation, by_checks=True)


def _note_checks(participation: Participation, lease: AnsweredLease, label: Label) -> None:
    """Record whether a new answer passed its checks, if it is the first under a lease with this purpose."""
    before = Label.objects.exclude(pk=label.pk).exclude(status=Label.Status.VOID)
    if before.filter(
        comparison=lease.comparison, labeler=lease.labeler, lease__purpose=lease.purpose
    ).exists():
        return
    if lease.purpose == Lease.Purpose.GOLD:
        passed = KINDS[lease.kind].passes(label.answer, lease.gold or "")
        participation.gold_checks = _with_check(participation.gold_checks, passed=passed)
    if lease.min_watch_ms:
        passed = _watched_ms(lease, label) >= lease.min_watch_ms
        participation.watch_checks = _with_check(participation.watch_checks, passed=passed)


def _watched_ms(lease: AnsweredLease, label: Label) -> int:
    """Return the watch time that the browser reported in milliseconds, at most the lease's age."""
    said = label.response_ms if label.shown_ms is None else label.shown_ms
    return lease.age_ms if said is None else min(said, lease.age_ms)


def _with_check(checks: str, *, passed: bool) -> str:
    """Return ``checks`` with a result appended, truncated to the last ``CHECKS_KEPT``."""
    return f"{checks}{passed:d}"[-Participation.CHECKS_KEPT :]


@transaction.atomic
def record_undo(
    labeler: Labeler, label_uuid: UUID, undo_uuid: UUID, *, keep_slot: bool = False
) -> tuple[Undo, Lease | None, bool]:
    """Withdraw an answer and lease its comparison to the labeler again.

    No lease is granted if the label is surplus or void, the labeler was stopped, or the experiment is not
    running. ``keep_slot=True`` grants a lease even if the experiment is not running, and promotes no other
    label; this is for callers that record a replacement answer in the same transaction, and then promote.

    Returns the undo, the new lease (None if none was granted or it is no longer live), and whether the undo
    is new. Raises :class:`NotFoundError` if the label is not the labeler's, and :class:`ConflictError` if the
    label was already undone by a different request or ``undo_uuid`` is already in use.
    """
    own = Label.objects.select_related("lease").filter(
        uuid=label_uuid, labeler=labeler, comparison__experiment__deletion_asked_at=None
    )
    label = own.first()
    if label is None:
        raise NotFoundError(_("You have no label %(uuid)s.") % {"uuid": label_uuid})
    comparison = lock_comparison(label.comparison_id)
    label = own.get()  # reread under the lock: a surplus label may have been counted meanwhile
    known = Undo.objects.filter(label=label).first()
    if known is not None and known.uuid == undo_uuid:
        still = Lease.objects.select_related("comparison").filter(live_leases(), pk=known.lease_id or 0)
        return known, still.first(), False
    if known is not None or Undo.objects.filter(uuid=undo_uuid).exists():
        raise ConflictError(
            _("Label %(uuid)s was already undone, or this undo's UUID is already in use.")
            % {"uuid": label_uuid}
        )
    left_slot = label.status not in {Label.Status.SURPLUS, Label.Status.VOID}
    participation = participation_of(labeler, comparison.experiment)
    gives_work = keep_slot or comparison.experiment.state == Experiment.State.RUNNING
    goes_on = gives_work and participation.stopped_at is None
    lease = grant_again(comparison, label, participation.invite_id) if left_slot and goes_on else None
    undo = Undo.objects.create(uuid=undo_uuid, label=label, lease=lease)
    if label.status != Label.Status.VOID:
        parts.add(participation.pk, label.lease.invite_id, undone=1)
    if label.status == Label.Status.COUNTED:
        promote([] if keep_slot else [comparison.pk], changed=[comparison.pk])
    return undo, lease, True


_WITHDRAWAL = UUID("6f6a2c07-4c0f-4f0c-9b0a-0b1f6a8f1d3e")


@dataclass(frozen=True)
class Revision:
    """A new answer that replaces ``label``. Idempotent: resending it has no further effect."""

    uuid: UUID
    label: UUID
    choice: str


@transaction.atomic
def revise_answer(labeler: Labeler, revision: Revision) -> Label:
    """Replace one of the labeler's answers and return the new label; the clips stay on the same sides.

    The new label gets the experiment's current prompt version, because the history page shows that prompt. If
    the choice is unchanged, the old label is returned as it is. Raises :class:`NotFoundError` if the label is
    not the labeler's, and :class:`ConflictError` if it was undone by a different request.
    """
    found = Label.objects.select_related("lease", "comparison__experiment")
    old = found.filter(uuid=revision.label, labeler=labeler).first()
    if old is None:
        raise NotFoundError(_("You have no label %(uuid)s.") % {"uuid": revision.label})
    if old.choice == revision.choice and not hasattr(old, "undo"):
        return old
    lock_comparison(old.comparison_id)
    end_leases(Lease.objects.filter(comparison=old.comparison_id, labeler=labeler))  # before other rows
    record_undo(labeler, old.uuid, uuid5(_WITHDRAWAL, str(revision.uuid)), keep_slot=True)
    Lease.objects.filter(pk=old.lease_id).update(prompt_version=old.comparison.experiment.prompt_version)
    # Using the old lease keeps the sides and the position in the history; answering also ends the new lease.
    answer = Answer(revision.uuid, old.lease.uuid, revision.choice, response_ms=None)
    record_answer(answered_lease(labeler, old.lease.uuid), answer)
    promote([old.comparison_id])  # in case the labeler was stopped: then the new answer is void
    return Label.objects.get(uuid=answer.uuid)

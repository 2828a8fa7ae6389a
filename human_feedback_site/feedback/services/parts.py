"""A labeler's answer counts in one experiment, kept separately for each invitation.

Quality checks, and the rule that a labeler judges a pair only once, apply to the participation as a whole.
The number of answers, the completion and the platform's code belong to the invitation. The participation row
itself describes the current invitation, whose answers are all valid ones except the number in ``elsewhere``.
The other invitations have rows of their own (:class:`InvitePart`), so that recording a typical answer updates
just one row.

An answer belongs to the invitation under which its lease was granted or last renewed. If ``elsewhere`` is
None, the labeler has used no invitation, or only one, of an earlier version, to which all answers belong.
"""

from django.db import transaction
from django.db.models import Case, F, Q, Sum, When

from human_feedback_site.feedback.models import Experiment, Invite, InvitePart, Labeler, Lease, Participation
from human_feedback_site.feedback.queue.sql import wait_for_turn
from human_feedback_site.feedback.services.accounts import participation_of


@transaction.atomic
def come_by(labeler: Labeler, experiment: Experiment, invite: Invite | None) -> None:
    """Set the labeler's current invitation; None is the link printed by a run."""
    if invite is None and not Participation.objects.filter(labeler=labeler, experiment=experiment).exists():
        return
    known = participation_of(labeler, experiment)
    wait_for_turn(known.pk)  # so that a concurrent request for work uses one invitation throughout
    participation = Participation.objects.select_for_update(no_key=True).get(pk=known.pk)
    before, now = participation.invite_id, None if invite is None else invite.pk
    if before == now:
        return
    _keep(participation)
    part = participation.parts.filter(invite=invite).first() or InvitePart()
    if now is None:
        kept = participation.parts.aggregate(sum=Sum("answered", default=0))["sum"]
        part.answered = participation.answered - kept
    participation.elsewhere = participation.answered - part.answered
    participation.completed_at = part.completed_at
    participation.completed_answers = part.completed_answers
    if part.pk is not None:
        part.delete()
    participation.invite = invite
    participation.empty_since = None
    participation.save(
        update_fields=["invite", "elsewhere", "completed_at", "completed_answers", "empty_since"]
    )


def _keep(participation: Participation) -> None:
    """Copy the answer count and completion fields to an :class:`InvitePart` for the current invitation."""
    if participation.invite_id is None:
        return
    InvitePart.objects.update_or_create(
        participation=participation,
        invite_id=participation.invite_id,
        defaults={
            "answered": participation.part_answered,
            "completed_at": participation.completed_at,
            "completed_answers": participation.completed_answers,
        },
    )
    if participation.elsewhere is None:  # leases granted by an earlier version lack an invitation
        own = Lease.objects.filter(labeler=participation.labeler_id, invite=None)
        own.filter(comparison__experiment=participation.experiment_id).update(invite=participation.invite_id)


def add(participation: int, invite: int | None, *, answers: int = 0, undone: int = 0) -> None:
    """Add answers and undos to a participation's counts and to an invitation's."""
    change = answers - undone
    elsewhere = When(~Q(invite=invite), then=F("elsewhere") + change)
    Participation.objects.filter(pk=participation).update(
        answers=F("answers") + answers,
        undone=F("undone") + undone,
        elsewhere=Case(elsewhere, default="elsewhere"),
    )
    add_elsewhere(participation, invite, change)


def add_elsewhere(participation: int, invite: int | None, change: int) -> None:
    """Add ``change`` to an earlier invitation's answer count; the current one's is in the participation."""
    parts = InvitePart.objects.filter(participation=participation, invite=invite)
    parts.update(answered=F("answered") + change)

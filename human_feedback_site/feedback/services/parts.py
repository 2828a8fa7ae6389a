"""A labeler's parts in an experiment: one for each invitation by which it came.

Quality, and that nobody judges a pair twice, belong to the participation; the count of answers, whether they
are enough, and the code for that belong to the invitation. The participation holds the part of the invitation
by which its labeler came last: all answers that stand but those ``elsewhere``. Other parts are rows of their
own (:class:`InvitePart`), so that an answer of the common kind is counted by one statement.

An answer belongs to the invitation under which its lease was given or last renewed. Where ``elsewhere`` is
empty, the labeler has come by one invitation at most, and all is that one's.
"""

from django.db import transaction
from django.db.models import Case, F, Q, Sum, When

from human_feedback_site.feedback.models import Experiment, Invite, InvitePart, Labeler, Lease, Participation
from human_feedback_site.feedback.queue.sql import wait_for_turn
from human_feedback_site.feedback.services.accounts import participation_of


@transaction.atomic
def come_by(labeler: Labeler, experiment: Experiment, invite: Invite | None) -> None:
    """Let a labeler go on with the part of an invitation; None is a run's own link."""
    if invite is None and not Participation.objects.filter(labeler=labeler, experiment=experiment).exists():
        return
    known = participation_of(labeler, experiment)
    wait_for_turn(known.pk)  # what a request for work leases meanwhile belongs to one part
    participation = Participation.objects.select_for_update(no_key=True).get(pk=known.pk)
    before, now = participation.invite_id, None if invite is None else invite.pk
    if before == now:
        return
    if before is not None or participation.answers:
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
    """Keep the part that ends for now."""
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
    if participation.elsewhere is None:  # leases that the version before gave do not know theirs
        own = Lease.objects.filter(labeler=participation.labeler_id, invite=None)
        own.filter(comparison__experiment=participation.experiment_id).update(invite=participation.invite_id)


def add(participation: int, invite: int | None, *, answers: int = 0, undone: int = 0) -> None:
    """Count answers, and withdrawals of answers, that belong to an invitation (None: to none)."""
    change = answers - undone
    elsewhere = When(~Q(invite=invite), then=F("elsewhere") + change)
    Participation.objects.filter(pk=participation).update(
        answers=F("answers") + answers,
        undone=F("undone") + undone,
        elsewhere=Case(elsewhere, default="elsewhere"),
    )
    add_elsewhere(participation, invite, change)


def add_elsewhere(participation: int, invite: int | None, change: int) -> None:
    """Count answers in the row of a part; that of the invitation by which one came last has none."""
    parts = InvitePart.objects.filter(participation=participation, invite=invite)
    parts.update(answered=F("answered") + change)

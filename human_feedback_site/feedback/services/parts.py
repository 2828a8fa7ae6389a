"""A labeler's answer counts and completion in one experiment, kept separately for each invitation.

Quality checks, and the rule that a labeler answers a question once, apply to the participation as a whole.
The number of answers, the completion and the platform's code belong to the invitation. The participation row
itself describes the current invitation, whose answers are all valid ones except the number in ``elsewhere``.
The other invitations have rows of their own (:class:`InvitePart`), so that recording a typical answer updates
just one row.

An answer belongs to the invitation under which its lease was granted or last renewed. If ``elsewhere`` is
None, the labeler has used no invitation, or only one, of an earlier version, to which all answers belong.

A task is complete when the labeler has given all the answers that the invitation asks for, when there has
been nothing to judge for long enough, or when the experiment is finished and the labeler has answered at
least once. Only then is the completion code shown, which proves it to the recruiting platform.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlencode, urlsplit

from django.db import transaction
from django.db.models import Case, F, Q, Sum, When
from django.db.models.functions import Now

from human_feedback_site.feedback.models import (
    Arrival,
    Experiment,
    Invite,
    InvitePart,
    Labeler,
    Lease,
    Participation,
)
from human_feedback_site.feedback.queue.leases import has_work
from human_feedback_site.feedback.queue.participants import participant_of
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


EMPTY_FOR = timedelta(seconds=170)  # slightly less than the three minutes that the page waits


class Part(StrEnum):
    """Status of a labeler's task under one invitation."""

    GOING_ON = "going_on"
    COMPLETE = "complete"
    SCREENED_OUT = "screened_out"


@dataclass(frozen=True)
class Ending:
    """Task result shown to a labeler; ``code`` and ``url`` are empty if the invitation has none."""

    part: Part
    answered: int
    wanted: int | None
    failed_checks: bool
    code: str = ""
    url: str = ""


def parts_of(arrivals: Sequence[Arrival]) -> list[tuple[int, Part]]:
    """For each of an experiment's arrivals, return the valid answers under its invitation, and the status."""
    labelers = [arrival.labeler_id for arrival in arrivals]
    experiments = {arrival.experiment_id for arrival in arrivals}
    doing = Participation.objects.filter(labeler__in=labelers, experiment__in=experiments)
    present = {each.labeler_id: each for each in doing.select_related("invite")}
    kept = InvitePart.objects.select_related("participation", "invite").filter(participation__in=doing)
    others = {(part.participation.labeler_id, part.invite_id): part for part in kept}
    found = []
    for arrival in arrivals:
        own = present[arrival.labeler_id]
        if own.invite_id == arrival.invite_id:
            found.append((own.part_answered, _part_of(own)))
        else:
            other = others.get((arrival.labeler_id, arrival.invite_id))
            found.append((other.answered, _part_of(own, other)) if other else (0, Part.GOING_ON))
    return found


def _part_of(participation: Participation, other: InvitePart | None = None) -> Part:
    """Return the task status for the current invitation, or for ``other``, an earlier one."""
    part = other or participation
    answered = other.answered if other else participation.part_answered
    if part.completed_at is not None and answered >= (part.completed_answers or 0):
        return Part.COMPLETE
    if participation.stopped_at is not None:
        return Part.SCREENED_OUT
    wanted = part.invite.answers_wanted if part.invite else None
    return Part.COMPLETE if wanted is not None and answered >= wanted else Part.GOING_ON


def conclude(participation: Participation) -> Ending:
    """Check whether a labeler's task is complete, record it if so, and return what to show.

    A completed task becomes incomplete again only if withdrawals leave fewer answers than there were at
    completion.
    """
    part, answered = _part_of(participation), participation.part_answered
    if part == Part.GOING_ON and (_ended(participation) or _waited(participation)):
        part = Part.COMPLETE
    if part == Part.COMPLETE:
        unknown = Q(completed_at=None) | Q(completed_answers__gt=answered)
        own = Participation.objects.filter(unknown, pk=participation.pk, invite=participation.invite_id)
        own.update(completed_at=Now(), completed_answers=answered)
    failed_checks = participation.failures >= participation.experiment.stop_failures
    invite = participation.invite
    if invite is None:
        return Ending(part, answered, None, failed_checks)
    codes = {Part.COMPLETE: invite.completion_code, Part.SCREENED_OUT: invite.screen_out_code}
    code = codes.get(part, "")
    return Ending(part, answered, invite.answers_wanted, failed_checks, code, _way_back(invite, code))


def _ended(participation: Participation) -> bool:
    finished = participation.experiment.state == Experiment.State.FINISHED
    return finished and participation.part_answered > 0


def _waited(participation: Participation) -> bool:
    if not Participation.objects.filter(pk=participation.pk, empty_since__lt=Now() - EMPTY_FOR).exists():
        return False
    return not has_work(participant_of(participation))


def _way_back(invite: Invite, code: str) -> str:
    if not code or not invite.return_url:
        return ""
    parts = urlsplit(invite.return_url)
    query = "&".join(filter(None, [parts.query, urlencode({"cc": code})]))
    return parts._replace(query=query).geturl()

"""Invitations that are kept: made, revoked, opened and used up.

Whoever opens one comes as somebody: the labeler whom it names, the one a platform's number stands for, or a
new one with a pseudonym. An invitation is used when it signs somebody in; its uses are raised by one
statement that looks at the limit, so they never exceed it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from human_feedback_site.feedback.errors import (
    ClosedError,
    ExpiredError,
    NotFoundError,
    OtherStudyError,
    UnknownParticipantError,
    UsedUpError,
    WithdrawnError,
)
from human_feedback_site.feedback.models import (
    PLATFORM_ID_PATTERN,
    Arrival,
    Experiment,
    Invite,
    Labeler,
)
from human_feedback_site.feedback.services import accounts
from human_feedback_site.feedback.services.parts import come_by
from human_feedback_site.feedback.services.pseudonyms import pseudonym

PROLIFIC_RETURN_URL = "https://app.prolific.com/submissions/complete"
_NAMES_TRIED = 50
PROLIFIC_NAMES = ("PROLIFIC_PID", "STUDY_ID", "SESSION_ID")


@dataclass(frozen=True)
class PlatformParticipant:
    """Whom a platform sends."""

    participant: str
    study: str
    session: str


def sent_by_prolific(parameters: Mapping[str, str]) -> PlatformParticipant:
    """Return whom Prolific says it sends; raises :class:`UnknownParticipantError`."""
    values = [parameters.get(name, "") for name in PROLIFIC_NAMES]
    if not all(re.fullmatch(PLATFORM_ID_PATTERN, value) for value in values):
        raise UnknownParticipantError("Prolific's numbers have 24 digits and letters from a to f each.")
    return PlatformParticipant(*values)


@transaction.atomic
def invite_by_name(experiment: Experiment, labeler_name: str) -> Invite:
    """Invite a labeler, made where there is none, by a link that works for a month, again and again.

    A link of that kind which there is already is given out once more, with a new month.
    """
    labeler = accounts.invite(experiment, labeler_name)
    Labeler.objects.select_for_update(no_key=True).get(pk=labeler.pk)  # one at a time
    plain = {"kind": Invite.Kind.NAMED, "limit": None, "answers_wanted": None, "note": ""}
    expires_at = timezone.now() + timedelta(seconds=settings.INVITE_MAX_AGE_SECONDS)
    known = usable(experiment.invites.filter(labeler=labeler, **plain)).first()
    if known is None:
        return Invite.objects.create(experiment=experiment, labeler=labeler, expires_at=expires_at, **plain)
    known.expires_at = expires_at
    known.save(update_fields=["expires_at"])
    return known


def link_of(invite: Invite, base_url: str) -> str:
    """Return the invitation's address below ``base_url``; each call signs a new one, and all of them work."""
    token = signing.dumps({"invite": invite.pk}, salt=accounts.INVITE_SALT)
    return base_url.rstrip("/") + reverse("join", args=[token])


def revoke(invites: QuerySet[Invite]) -> int:
    """Let nobody in by these any more; who is in stays in. Returns how many were open."""
    return invites.order_by().filter(revoked_at=None).update(revoked_at=Now())


def usable(invites: QuerySet[Invite]) -> QuerySet[Invite]:
    """Return those that would let somebody in."""
    return invites.filter(Q(limit=None) | Q(uses__lt=F("limit")), revoked_at=None, expires_at__gt=Now())


def open_invite(pk: int) -> Invite:
    """Return an invitation; raises :class:`NotFoundError`, and :class:`WithdrawnError` where it was revoked.

    Whether it lets anybody in who was not here before is found when it is used.
    """
    invite = Invite.objects.select_related("experiment", "labeler__user").filter(pk=pk).first()
    if invite is None:
        raise NotFoundError("There is no such invitation.")
    labeler = invite.labeler
    if invite.revoked_at is not None or (labeler is not None and not _may_label(labeler, invite.experiment)):
        raise WithdrawnError("This invitation was withdrawn.")
    return invite


def known_labeler(invite: Invite, user: User | None, sent: PlatformParticipant | None) -> Labeler | None:
    """Return who opens the invitation, if it was here by any link before; raises :class:`WithdrawnError`."""
    if invite.kind == Invite.Kind.NAMED:
        return invite.labeler
    labeler = _who_was_sent(invite.experiment, sent) if sent is not None else _who_came(invite, user)
    if labeler is not None and not _may_label(labeler, invite.experiment):
        raise WithdrawnError("This invitation was withdrawn.")
    return labeler


def _who_was_sent(experiment: Experiment, sent: PlatformParticipant) -> Labeler | None:
    arrived = Arrival.objects.filter(experiment=experiment, participant=sent.participant)
    return Labeler.objects.select_related("user").filter(arrivals__in=arrived).first()


def _who_came(invite: Invite, user: User | None) -> Labeler | None:
    came = Q(participations__invite=invite) | Q(participations__parts__invite=invite)
    return Labeler.objects.select_related("user").filter(came, user=user).first()


def let_in_before(
    invite: Invite, labeler: Labeler, user: User | None, sent: PlatformParticipant | None
) -> bool:
    """Say whether this invitation let the labeler in before: it does so again, whatever became of it.

    By a link with a name, who is not signed in any more signs in once more.
    """
    if sent is not None:
        return _has_arrived(invite, sent)
    return labeler.user == user and _who_came(invite, user) is not None


def _has_arrived(invite: Invite, sent: PlatformParticipant) -> bool:
    """Say whether a platform's participant came by this very link before."""
    return invite.arrivals.filter(participant=sent.participant).exists()


def _may_label(labeler: Labeler, experiment: Experiment) -> bool:
    return labeler.user.is_active and labeler.experiments.filter(pk=experiment.pk).exists()


def refuse_if_closed(invite: Invite, sent: PlatformParticipant | None = None) -> None:
    """Raise what :func:`admit` would raise now, without using the invitation."""
    if sent is not None and invite.study and sent.study != invite.study:
        raise OtherStudyError("This link belongs to another study.")
    has_arrived = sent is not None and _has_arrived(invite, sent)
    if not has_arrived and not usable(Invite.objects.filter(pk=invite.pk)).exists():
        raise _reason(invite)
    if invite.kind == Invite.Kind.ANONYMOUS and invite.experiment.state == Experiment.State.FINISHED:
        raise ClosedError("The experiment is finished.")


def _reason(invite: Invite) -> Exception:
    """Say why an invitation lets nobody in any more."""
    found = Invite.objects.filter(pk=invite.pk)
    if not found.filter(revoked_at=None).exists():
        return WithdrawnError("This invitation was withdrawn.")
    if found.filter(expires_at__gt=Now()).exists():
        return UsedUpError("This invitation has let in as many as it may.")
    return ExpiredError("This invitation has expired.")


def admit(invite: Invite, sent: PlatformParticipant | None = None) -> Labeler:
    """Use an invitation, and return whom it lets in.

    Raises :class:`ExpiredError`, :class:`UsedUpError`, :class:`ClosedError`, and :class:`OtherStudyError`.
    """
    refuse_if_closed(invite, sent)
    with transaction.atomic():
        return _admit(invite, sent)


def _admit(invite: Invite, sent: PlatformParticipant | None) -> Labeler:
    labeler = invite.labeler
    if sent is not None:
        # A participant may come with two browsers, or by two links, in the same moment.
        Experiment.objects.select_for_update(no_key=True).get(pk=invite.experiment_id)
        labeler = labeler or _who_was_sent(invite.experiment, sent)
        if labeler is not None and _has_arrived(invite, sent):
            return labeler
    if not usable(Invite.objects.filter(pk=invite.pk)).update(uses=F("uses") + 1):
        raise _reason(invite)
    labeler = labeler or _newcomer(invite.experiment)
    come_by(labeler, invite.experiment, invite)
    if sent is not None:
        Arrival.objects.create(experiment=invite.experiment, invite=invite, labeler=labeler, **vars(sent))
    return labeler


def _newcomer(experiment: Experiment) -> Labeler:
    """Return a new labeler of the experiment, under a name that nobody else of its owner has."""
    for _ in range(_NAMES_TRIED):
        try:
            labeler = accounts.new_labeler(experiment.owner, pseudonym())
        except IntegrityError:  # somebody has the name
            continue
        labeler.experiments.add(experiment)
        return labeler
    raise RuntimeError(f"No free pseudonym in {_NAMES_TRIED} attempts.")


def forget_participants(arrivals: QuerySet[Arrival]) -> int:
    """Delete the platform's numbers of these; labels stay, under pseudonyms. Returns how many people."""
    people = arrivals.order_by().values("experiment", "participant").distinct().count()
    arrivals.order_by().delete()
    return people

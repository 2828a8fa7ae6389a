"""Stored invitations: creating, revoking, opening and using them.

Opening an invitation signs in the labeler that it names, the labeler with the platform's participant ID, or a
new labeler with a pseudonym. Each sign-in increments ``uses`` in an UPDATE that also checks the limit, so the
limit is never exceeded.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback.errors import (
    ClosedError,
    ConflictError,
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
    Participation,
)
from human_feedback_site.feedback.services import accounts
from human_feedback_site.feedback.services.parts import come_by

PROLIFIC_RETURN_URL = "https://app.prolific.com/submissions/complete"
_NAMES_TRIED = 50
PROLIFIC_NAMES = ("PROLIFIC_PID", "STUDY_ID", "SESSION_ID")


@dataclass(frozen=True)
class PlatformParticipant:
    """Participant, study and session IDs that a recruitment platform adds to a participant's link."""

    participant: str
    study: str
    session: str


def sent_by_prolific(parameters: Mapping[str, str]) -> PlatformParticipant:
    """Return the IDs in Prolific's URL parameters, or raise :class:`UnknownParticipantError`."""
    values = {name: parameters.get(name, "") for name in PROLIFIC_NAMES}
    bad = [name for name, value in values.items() if not re.fullmatch(PLATFORM_ID_PATTERN, value)]
    if bad:
        raise UnknownParticipantError(bad)
    return PlatformParticipant(*values.values())


@transaction.atomic
def invite_by_name(
    experiment: Experiment, labeler_name: str, kind: str | None = None, share: float | None = None
) -> Invite:
    """Return an invitation for the labeler with this name, creating both if needed.

    Its link can be used any number of times for ``INVITE_MAX_AGE_SECONDS``. If the labeler already has a
    usable invitation with no use limit, answer goal or note, that invitation is extended and returned.

    Args:
        kind: kind of labeler; None leaves it unchanged. Raises :class:`ConflictError` if it is a model, but a
            person has answered under this name.
        share: share of the questions that a model may decide without people; None leaves it unchanged.
    """
    labeler = accounts.invite(experiment, labeler_name)
    if kind is not None and labeler.kind != kind:
        if kind == Labeler.Kind.MODEL and labeler.labels.exists():
            raise ConflictError(f"{labeler_name!r} has answered as a person; choose another name.")
        labeler.kind = kind
        labeler.save(update_fields=["kind"])
    if share is not None:
        participation = accounts.participation_of(labeler, experiment)
        Participation.objects.filter(pk=participation.pk).update(share=share)
    Labeler.objects.select_for_update(no_key=True).get(pk=labeler.pk)  # one invitation at a time
    plain = {"kind": Invite.Kind.NAMED, "limit": None, "answers_wanted": None, "note": ""}
    expires_at = timezone.now() + timedelta(seconds=settings.INVITE_MAX_AGE_SECONDS)
    known = usable(experiment.invites.filter(labeler=labeler, **plain)).first()
    if known is None:
        return Invite.objects.create(experiment=experiment, labeler=labeler, expires_at=expires_at, **plain)
    known.expires_at = expires_at
    known.save(update_fields=["expires_at"])
    return known


def link_of(invite: Invite, base_url: str) -> str:
    """Return the invitation's URL under ``base_url``, always the same."""
    return accounts.stored_url(invite.pk, base_url)


def revoke(invites: QuerySet[Invite]) -> int:
    """Revoke invitations; return how many were newly revoked. Labelers stay signed in."""
    return invites.order_by().filter(revoked_at=None).update(revoked_at=Now())


def usable(invites: QuerySet[Invite]) -> QuerySet[Invite]:
    """Return the invitations that are not revoked, expired or used up."""
    return invites.filter(Q(limit=None) | Q(uses__lt=F("limit")), revoked_at=None, expires_at__gt=Now())


def open_invite(pk: int) -> Invite:
    """Return the invitation, maybe expired; raises NotFoundError and WithdrawnError."""
    invite = Invite.objects.select_related("experiment", "labeler__user").filter(pk=pk).first()
    if invite is None:
        raise NotFoundError("There is no such invitation.")
    labeler = invite.labeler
    if invite.revoked_at is not None or (labeler is not None and not _may_label(labeler, invite.experiment)):
        raise WithdrawnError("This invitation was withdrawn.")
    return invite


def known_labeler(invite: Invite, user: User | None, sent: PlatformParticipant | None) -> Labeler | None:
    """Return the labeler who opens the invitation, None for a newcomer, or raise :class:`WithdrawnError`."""
    if invite.kind == Invite.Kind.NAMED:
        return invite.labeler
    if sent is not None:
        labeler = _labeler_of_participant(invite.experiment, sent)
    else:
        labeler = _labeler_of_user(invite, user)
    if labeler is not None and not _may_label(labeler, invite.experiment):
        raise WithdrawnError("This invitation was withdrawn.")
    return labeler


def _labeler_of_participant(experiment: Experiment, sent: PlatformParticipant) -> Labeler | None:
    arrived = Arrival.objects.filter(experiment=experiment, participant=sent.participant)
    return Labeler.objects.select_related("user").filter(arrivals__in=arrived).first()


def _labeler_of_user(invite: Invite, user: User | None) -> Labeler | None:
    came = Q(participations__invite=invite) | Q(participations__parts__invite=invite)
    return Labeler.objects.select_related("user").filter(came, user=user).first()


def own_labeler(invite: Invite, user: User | None) -> Labeler | None:
    """Return the labeler who may use an anonymous invitation under their own name instead of a pseudonym.

    That is the signed-in user's labeler after single sign-on. Return None for other users, for a platform's
    participants, and for a labeler who was removed from the experiment.
    """
    if user is None or invite.kind != Invite.Kind.ANONYMOUS or invite.platform:
        return None
    own = Labeler.objects.select_related("user").filter(user=user, user__identity__isnull=False)
    removed = own.filter(participations__experiment=invite.experiment).exclude(experiments=invite.experiment)
    return None if removed.exists() else own.first()


def let_in_before(
    invite: Invite, labeler: Labeler, user: User | None, sent: PlatformParticipant | None
) -> bool:
    """Return True if the labeler has already been admitted with this invitation, even if it is used up.

    A labeler not sent by a platform (``sent`` is None) is recognized only if ``user`` is signed in as that
    labeler. Without that, opening the invitation counts as a new use.
    """
    if sent is not None:
        return _has_arrived(invite, sent)
    return labeler.user == user and _labeler_of_user(invite, user) is not None


def _has_arrived(invite: Invite, sent: PlatformParticipant) -> bool:
    return invite.arrivals.filter(participant=sent.participant).exists()


def _may_label(labeler: Labeler, experiment: Experiment) -> bool:
    return labeler.user.is_active and labeler.experiments.filter(pk=experiment.pk).exists()


def refuse_if_closed(invite: Invite, sent: PlatformParticipant | None = None) -> None:
    """Raise the error that :func:`admit` would raise, if any, without a use of the invitation."""
    if sent is not None and invite.study and sent.study != invite.study:
        raise OtherStudyError("This link belongs to a different study.")
    has_arrived = sent is not None and _has_arrived(invite, sent)
    if not has_arrived and not usable(Invite.objects.filter(pk=invite.pk)).exists():
        raise _closing_error(invite)
    if invite.kind == Invite.Kind.ANONYMOUS and invite.experiment.state == Experiment.State.FINISHED:
        raise ClosedError("The experiment is finished.")


def _closing_error(invite: Invite) -> Exception:
    found = Invite.objects.filter(pk=invite.pk)
    if not found.filter(revoked_at=None).exists():
        return WithdrawnError("This invitation was withdrawn.")
    if found.filter(expires_at__gt=Now()).exists():
        return UsedUpError("This invitation has been used the maximum number of times.")
    return ExpiredError("This invitation has expired.")


def admit(invite: Invite, sent: PlatformParticipant | None = None, own: Labeler | None = None) -> Labeler:
    """Use the invitation and return the labeler to sign in.

    For an anonymous invitation, that is ``own`` (see :func:`own_labeler`) or, if it is None, a labeler with a
    pseudonym. A return visit by a platform's participant doesn't count as a use. Raises
    :class:`WithdrawnError`, :class:`ExpiredError` or :class:`UsedUpError` if the invitation can't be used,
    :class:`ClosedError` if the experiment is finished, and :class:`OtherStudyError` if the participant was
    sent by a different study.
    """
    refuse_if_closed(invite, sent)
    with transaction.atomic():
        return _admit(invite, sent, own)


def _admit(invite: Invite, sent: PlatformParticipant | None, own: Labeler | None) -> Labeler:
    labeler = invite.labeler or own
    if sent is not None:
        # Locked because a participant may open two links, or use two browsers, at the same time.
        Experiment.objects.select_for_update(no_key=True).get(pk=invite.experiment_id)
        labeler = labeler or _labeler_of_participant(invite.experiment, sent)
        if labeler is not None and _has_arrived(invite, sent):
            return labeler
    if not usable(Invite.objects.filter(pk=invite.pk)).update(uses=F("uses") + 1):
        raise _closing_error(invite)
    labeler = labeler or _newcomer(invite.experiment)
    if own is not None:
        own.experiments.add(invite.experiment)
    come_by(labeler, invite.experiment, invite)
    if sent is not None:
        Arrival.objects.create(experiment=invite.experiment, invite=invite, labeler=labeler, **vars(sent))
    return labeler


def _newcomer(experiment: Experiment) -> Labeler:
    """Create a labeler for the experiment; the pseudonym is unique among the owner's labelers."""
    for _ in range(_NAMES_TRIED):
        try:
            labeler = accounts.new_labeler(experiment.owner, pseudonym())
        except IntegrityError:  # the name is taken
            continue
        labeler.experiments.add(experiment)
        return labeler
    raise RuntimeError(f"Found no unused pseudonym in {_NAMES_TRIED} attempts.")


def forget_participants(arrivals: QuerySet[Arrival]) -> int:
    """Delete these arrivals, including the platform IDs; return the number of participants affected."""
    people = arrivals.order_by().values("experiment", "participant").distinct().count()
    arrivals.order_by().delete()
    return people


_COLORS = (
    *("amber", "azure", "beige", "black", "blue", "bronze", "brown", "coral", "cream"),
    *("crimson", "cyan", "emerald", "golden", "green", "grey", "indigo", "ivory", "jade"),
    *("lemon", "lilac", "lime", "mauve", "navy", "ochre", "olive", "orange", "pearl"),
    *("pink", "plum", "purple", "red", "rose", "ruby", "silver", "teal", "white"),
)
_ANIMALS = (
    *("badger", "bear", "beaver", "bison", "camel", "crane", "deer", "dolphin", "dove"),
    *("duck", "eagle", "falcon", "finch", "fox", "frog", "gecko", "goose", "hare"),
    *("hawk", "heron", "horse", "ibis", "jaguar", "koala", "lark", "lemur", "lion"),
    *("llama", "lynx", "marten", "mole", "moose", "newt", "otter", "owl", "panda"),
    *("puffin", "quail", "rabbit", "raven", "robin", "salmon", "seal", "swan", "tapir"),
    *("tern", "tiger", "toad", "trout", "turtle", "walrus", "whale", "wolf", "wren"),
    *("yak", "zebra"),
)
_NUMBERS = 900


def pseudonym() -> str:
    """Return a random name such as ``amber-otter-417``; almost two million are possible."""
    number = 100 + secrets.randbelow(_NUMBERS)
    return f"{secrets.choice(_COLORS)}-{secrets.choice(_ANIMALS)}-{number}"

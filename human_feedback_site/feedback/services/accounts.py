"""Tokens for trainers, invitations for labelers."""

import secrets
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from human_feedback_site.feedback.errors import NotFoundError, WithdrawnError
from human_feedback_site.feedback.models import (
    MAX_LABELER_NAME,
    ApiToken,
    Experiment,
    Labeler,
    Participation,
)

INVITE_SALT = "feedback.invite"
TOKEN_DAYS = 365  # unless another time is asked for
_TOKEN_PREFIX = "tt_"  # noqa: S105  (what a token starts with, so that secret scanners can tell)


def create_token(user: User, name: str = "trainer", **limits: Any) -> str:
    """Return a new token of ``user``; this is the only time it can be read.

    ``limits`` are those of :class:`ApiToken`: ``experiment`` and ``expires_at``, a year from now without it.
    """
    lasting = {"expires_at": timezone.now() + timedelta(days=TOKEN_DAYS)}
    return issue_token(ApiToken(user=user, name=name, **lasting | limits))


def issue_token(token: ApiToken) -> str:
    """Save a new ``token`` and return its secret, which is the only time it can be read."""
    secret = _new_secret()
    token.digest = ApiToken.digest_of(secret)
    token.save(force_insert=True)
    return secret


def rotate_token(token: ApiToken) -> str:
    """Put a new secret in the place of a token's old one, which is good for nothing now; return it.

    It lasts as long from now on as the old one did from its beginning.
    """
    secret, now = _new_secret(), timezone.now()
    if token.expires_at is not None:
        token.expires_at = now + (token.expires_at - token.created_at)
    token.digest, token.created_at, token.last_used_at = ApiToken.digest_of(secret), now, None
    token.save(update_fields=["digest", "expires_at", "created_at", "last_used_at"])
    return secret


def revoke_tokens(tokens: QuerySet[ApiToken]) -> int:
    """Let these be good for nothing; return how many they were."""
    return tokens.delete()[0]


def _new_secret() -> str:
    return _TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_of(secret: str) -> ApiToken | None:
    """Return a token that has not expired, of an active user, noting the use at most once a minute."""
    lasting = ApiToken.objects.select_related("user").exclude(expires_at__lte=Now())
    found = lasting.filter(digest=ApiToken.digest_of(secret)).first()
    if found is None or not found.user.is_active:
        return None
    stale = Q(last_used_at=None) | Q(last_used_at__lt=Now() - timedelta(minutes=1))
    ApiToken.objects.filter(stale, pk=found.pk).update(last_used_at=Now())
    return found


def label_url(experiment: Experiment, base_url: str) -> str:
    """Return the address of the experiment's labeling page below ``base_url``."""
    return base_url.rstrip("/") + reverse("label", args=[experiment.name])


def page_url(experiment: Experiment, base_url: str) -> str:
    """Return the address of the experiment's own page below ``base_url``."""
    return base_url.rstrip("/") + reverse("experiment", args=[experiment.name])


@transaction.atomic
def invite(experiment: Experiment, labeler_name: str) -> Labeler:
    """Let the labeler of that name, made where there is none, label ``experiment``, and return it."""
    labeler = labeler_named(experiment.owner, labeler_name)
    labeler.experiments.add(experiment)
    return labeler


def invite_newcomer(experiment: Experiment, labeler_name: str) -> None:
    """Invite where there is no labeler of that name; one who was taken out of the experiment stays out."""
    if not Labeler.objects.filter(invited_by=experiment.owner_id, name=labeler_name).exists():
        invite(experiment, labeler_name)


def invite_url(experiment: Experiment, labeler_name: str, base_url: str) -> str:
    """Return the address below ``base_url`` that signs in an invited labeler to label ``experiment``.

    It is what a run prints for its first labeler; nothing is kept of it.
    """
    token = signing.dumps({"experiment": experiment.pk, "labeler": labeler_name}, salt=INVITE_SALT)
    return base_url.rstrip("/") + reverse("join", args=[token])


def kept_invite(token: str) -> int | None:
    """Return which of the invitations that are kept a link is; None for a run's own, of which nothing is.

    Raises :class:`django.core.signing.BadSignature` for a forged one.
    """
    number: int | None = signing.loads(token, salt=INVITE_SALT).get("invite")
    return number


def accept_invite(token: str) -> tuple[Labeler, Experiment]:
    """Return the labeler a run's own invitation names, and the experiment it is for.

    Raises :class:`django.core.signing.BadSignature` for a forged or expired invitation,
    :class:`NotFoundError` where the experiment is gone, :class:`WithdrawnError` where the labeler is not
    among its labelers any more, or may not sign in.
    """
    claims = signing.loads(token, salt=INVITE_SALT, max_age=settings.INVITE_MAX_AGE_SECONDS)
    experiment = Experiment.objects.filter(pk=claims["experiment"]).first()
    if experiment is None:
        raise NotFoundError("The experiment of this invitation does not exist any more.")
    invited = Labeler.objects.select_related("user").filter(
        invited_by=experiment.owner_id, name=claims["labeler"]
    )
    labeler = invited.filter(experiments=experiment, user__is_active=True).first()
    if labeler is None:
        raise WithdrawnError("This invitation was withdrawn.")
    return labeler, experiment


def labeler_named(researcher: User, name: str) -> Labeler:
    """Return the researcher's labeler of that name; nobody can invite into another's names."""
    found = Labeler.objects.select_related("user").filter(invited_by=researcher, name=name).first()
    if found is not None:
        return found
    try:
        return new_labeler(researcher, name)
    except IntegrityError:  # the name was invited twice at the same moment
        return Labeler.objects.select_related("user").get(invited_by=researcher, name=name)


@transaction.atomic
def new_labeler(researcher: User, name: str) -> Labeler:
    """Make a labeler with an account; raises :class:`django.db.IntegrityError` where there is one."""
    user = User(username=f"{name}-{secrets.token_hex(4)}")
    user.set_unusable_password()
    user.save()
    return Labeler.objects.create(user=user, name=name, invited_by=researcher)


def labeler_for(user: User, experiment: Experiment) -> Labeler:
    """Return ``user`` as a labeler of ``experiment``; its owner may always label, anybody else when invited.

    Raises :class:`NotFoundError`.
    """
    labeler = Labeler.objects.filter(user=user, experiments=experiment).first()
    if labeler is not None:
        return labeler
    if user.pk != experiment.owner_id:
        raise NotFoundError(f"There is no experiment {experiment.name!r} for you.")
    labeler, _ = Labeler.objects.get_or_create(
        user=user, defaults={"name": f"{user.username} (owner)"[:MAX_LABELER_NAME], "invited_by": user}
    )
    labeler.experiments.add(experiment)
    return labeler


def participation_of(labeler: Labeler, experiment: Experiment) -> Participation:
    """Return how a labeler does in an experiment."""
    participation, _ = Participation.objects.select_related("labeler", "experiment").get_or_create(
        labeler=labeler, experiment=experiment
    )
    return participation


def participation_in(user: User, name: str) -> Participation:
    """Return how ``user`` does in the experiment of that name; raises :class:`NotFoundError`."""
    return participation_of(*labeler_in(user, name))


def labeler_in(user: User, name: str) -> tuple[Labeler, Experiment]:
    """Return ``user`` as a labeler, and the experiment of that name; raises :class:`NotFoundError`."""
    experiment = Experiment.objects.filter(name=name).first()
    if experiment is None:
        raise NotFoundError(f"There is no experiment {name!r} for you.")
    return labeler_for(user, experiment), experiment


def labeler_of(user: User) -> Labeler:
    """Return ``user`` as a labeler; raises :class:`NotFoundError` for somebody who has never held a lease."""
    labeler = Labeler.objects.filter(user=user).first()
    if labeler is None:
        raise NotFoundError("You have not been given anything to label.")
    return labeler

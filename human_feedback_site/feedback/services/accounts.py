"""API tokens for trainers, labeler accounts, and the signed links that a run prints.

A link's code, such as ``1-2-b4yz-k7f3m2p9qx``, consists of the experiment's ID, the labeler's ID, the hour in
which it was made, and a message authentication code of 49 bits, which must be guessed online.
A watch link also depends on the API token of the trainer that requested it. The link, and every session that
opened it, stops working once that token is revoked, replaced or expired, or its user is no longer staff.
"""

import re
import secrets
import time
from dataclasses import dataclass
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
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.http import base36_to_int, int_to_base36

from human_feedback_site.feedback.errors import NotFoundError, WithdrawnError
from human_feedback_site.feedback.models import MAX_LABELER_NAME, ApiToken, Experiment, Labeler, Participation
from human_feedback_site.feedback.models.names import name_from, normalized

INVITE_SALT, _WATCH_SALT = "feedback.invite", "feedback.watch"
TOKEN_DAYS = 365  # default lifetime of a token
_TOKEN_PREFIX = "tt_"  # noqa: S105  (lets secret scanners recognize a token)
_SYMBOLS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
_SIGNATURE_LENGTH = 10
_CODE = re.compile(rf"([0-9a-z]{{1,12}})-([0-9a-z]{{1,12}})-([0-9a-z]{{1,6}})-([{_SYMBOLS}]{{10}})")
_HOUR = 3600


def create_token(user: User, name: str = "trainer", **limits: Any) -> str:
    """Create an API token for ``user``, by default for a year, and return its secret."""
    lasting = {"expires_at": timezone.now() + timedelta(days=TOKEN_DAYS)}
    return issue_token(ApiToken(user=user, name=name, **lasting | limits))


def issue_token(token: ApiToken) -> str:
    """Save the new ``token`` and return its secret, which can't be retrieved later."""
    secret = _new_secret()
    token.digest = ApiToken.digest_of(secret)
    token.save(force_insert=True)
    return secret


def rotate_token(token: ApiToken) -> str:
    """Replace a token's secret and return the new one; its lifetime starts again."""
    secret, now = _new_secret(), timezone.now()
    if token.expires_at is not None:
        token.expires_at = now + (token.expires_at - token.created_at)
    token.digest, token.created_at, token.last_used_at = ApiToken.digest_of(secret), now, None
    token.save(update_fields=["digest", "expires_at", "created_at", "last_used_at"])
    return secret


def revoke_tokens(tokens: QuerySet[ApiToken]) -> int:
    """Revoke tokens by deleting them; return the number deleted."""
    return tokens.delete()[0]


def _new_secret() -> str:
    return _TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_of(secret: str) -> ApiToken | None:
    """Return the unexpired token with this secret if its user is active, else None."""
    lasting = ApiToken.objects.select_related("user").exclude(expires_at__lte=Now())
    found = lasting.filter(digest=ApiToken.digest_of(secret)).first()
    if found is None or not found.user.is_active:
        return None
    stale = Q(last_used_at=None) | Q(last_used_at__lt=Now() - timedelta(minutes=1))
    ApiToken.objects.filter(stale, pk=found.pk).update(last_used_at=Now())
    return found


def label_url(experiment: Experiment, base_url: str) -> str:
    """Return the URL of the experiment's labeling page under ``base_url``."""
    return base_url.rstrip("/") + reverse("label", args=[experiment.name])


def page_url(experiment: Experiment, base_url: str) -> str:
    """Return the URL of the experiment's page under ``base_url``."""
    return base_url.rstrip("/") + reverse("experiment", args=[experiment.name])


@transaction.atomic
def invite(experiment: Experiment, labeler_name: str) -> Labeler:
    """Allow the owner's labeler called ``labeler_name``, created if needed, to label ``experiment``."""
    labeler = labeler_named(experiment.owner, labeler_name)
    labeler.experiments.add(experiment)
    return labeler


def invite_newcomer(experiment: Experiment, labeler_name: str) -> None:
    """Invite ``labeler_name`` unless the owner already has such a labeler, who may have been removed."""
    if not Labeler.objects.filter(invited_by=experiment.owner_id, name=labeler_name).exists():
        invite(experiment, labeler_name)


def invite_url(experiment: Experiment, labeler_name: str, base_url: str) -> str:
    """Return a short signed sign-in URL for a labeler invited to ``experiment``."""
    labeler = Labeler.objects.get(invited_by=experiment.owner_id, name=labeler_name)
    code = make_code(experiment.pk, labeler.pk, INVITE_SALT)
    return base_url.rstrip("/") + reverse("short-join", args=[code])


def kept_invite(token: str) -> int | None:
    """Return the ID of a link's stored invitation; None if a run printed the link."""
    if parse_code(token) is not None:
        return None
    number: int | None = signing.loads(token, salt=INVITE_SALT).get("invite")
    return number


def accept_invite(token: str) -> tuple[Labeler, Experiment]:
    """Return the labeler and the experiment of an invitation link printed by a run.

    Raises BadSignature, :class:`NotFoundError`, or :class:`WithdrawnError` if the labeler was removed.
    """
    code = parse_code(token)
    if code is None:
        claims = signing.loads(token, salt=INVITE_SALT, max_age=settings.INVITE_MAX_AGE_SECONDS)
        number, named = claims["experiment"], Q(name=claims["labeler"])
    elif code.check(INVITE_SALT):
        number, named = code.experiment, Q(pk=code.labeler)
    else:
        raise signing.BadSignature("The code was not made by this site.")
    experiment = Experiment.objects.filter(pk=number).first()
    if experiment is None:
        raise NotFoundError("This invitation's experiment no longer exists.")
    invited = Labeler.objects.select_related("user").filter(named, invited_by=experiment.owner_id)
    labeler = invited.filter(experiments=experiment, user__is_active=True).first()
    if labeler is None:
        raise WithdrawnError("This invitation was withdrawn.")
    return labeler, experiment


def labeler_named(researcher: User, name: str) -> Labeler:
    """Return the researcher's labeler with this name, creating the labeler if needed."""
    found = Labeler.objects.select_related("user").filter(invited_by=researcher, name=name).first()
    if found is not None:
        return found
    try:
        return new_labeler(researcher, name)
    except IntegrityError:  # a concurrent request created this labeler
        return Labeler.objects.select_related("user").get(invited_by=researcher, name=name)


@transaction.atomic
def new_labeler(researcher: User, name: str) -> Labeler:
    """Create a labeler with a user account that has no password; IntegrityError if the name is taken."""
    user = User(username=f"{name_from(name) or 'labeler'}-{secrets.token_hex(4)}")
    user.set_unusable_password()
    user.save()
    return Labeler.objects.create(user=user, name=normalized(name), invited_by=researcher)


def labeler_for(user: User, experiment: Experiment) -> Labeler:
    """Return the user's :class:`Labeler`, added if the user is the owner, or raise :class:`NotFoundError`."""
    labeler = Labeler.objects.filter(user=user, experiments=experiment).first()
    if labeler is not None:
        return labeler
    if user.pk != experiment.owner_id:
        raise NotFoundError(f"There is no experiment {experiment.name!r} that you can label.")
    labeler, _ = Labeler.objects.get_or_create(
        user=user, defaults={"name": f"{user.username} (owner)"[:MAX_LABELER_NAME], "invited_by": user}
    )
    labeler.experiments.add(experiment)
    return labeler


def participation_of(labeler: Labeler, experiment: Experiment) -> Participation:
    """Return the labeler's participation in the experiment, creating it if needed."""
    participation, _ = Participation.objects.select_related("labeler", "experiment").get_or_create(
        labeler=labeler, experiment=experiment
    )
    return participation


def participation_in(user: User, name: str) -> Participation:
    """Return the user's participation in the experiment called ``name``, created if needed."""
    return participation_of(*labeler_in(user, name))


def labeler_in(user: User, name: str) -> tuple[Labeler, Experiment]:
    """Return the user's :class:`Labeler` and the experiment, or raise :class:`NotFoundError`."""
    experiment = Experiment.objects.filter(name=name).first()
    if experiment is None:
        raise NotFoundError(f"There is no experiment {name!r} that you can label.")
    return labeler_for(user, experiment), experiment


def labeler_of(user: User) -> Labeler:
    """Return the user's :class:`Labeler`; raise :class:`NotFoundError` if there is none."""
    labeler = Labeler.objects.filter(user=user).first()
    if labeler is None:
        raise NotFoundError("You are not a labeler yet; ask a researcher for an invitation.")
    return labeler


@dataclass(frozen=True)
class ShortCode:
    """Content of a code whose signature has not been checked yet."""

    experiment: int
    labeler: int
    hour: int
    signature: str

    def check(self, salt: str, secret: str = "") -> bool:
        """Return True if the code was made with this salt and secret; SignatureExpired if too long ago."""
        signatures = [
            _signature(f"{salt}.{secret}", (self.experiment, self.labeler, self.hour), key)
            for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
        ]
        if not any(constant_time_compare(self.signature, each) for each in signatures):
            return False
        if time.time() - self.hour * _HOUR > settings.INVITE_MAX_AGE_SECONDS:
            raise signing.SignatureExpired("The link is too old.")
        return True


def make_code(experiment: int, labeler: int, salt: str, secret: str = "") -> str:
    """Return a code for a kind of link (``salt``), which is valid only with the same ``secret``."""
    numbers = experiment, labeler, int(time.time()) // _HOUR
    signature = _signature(f"{salt}.{secret}", numbers, settings.SECRET_KEY)
    return "-".join([*map(int_to_base36, numbers), signature])


def parse_code(token: str) -> ShortCode | None:
    """Return the content of a code, or None if ``token`` is something else, such as an earlier long token."""
    found = _CODE.fullmatch(token)
    if found is None:
        return None
    experiment, labeler, hour = (base36_to_int(number) for number in found.groups()[:3])
    return ShortCode(experiment, labeler, hour, found[4])


def _signature(salt: str, numbers: tuple[int, ...], key: str | bytes) -> str:
    digest = salted_hmac(salt, repr(numbers), secret=key, algorithm="sha256").digest()
    number, symbols = int.from_bytes(digest), ""
    for _ in range(_SIGNATURE_LENGTH):
        number, symbol = divmod(number, len(_SYMBOLS))
        symbols += _SYMBOLS[symbol]
    return symbols


def watch_url(experiment: Experiment, labeler_name: str, token: ApiToken, base_url: str) -> str:
    """Return a signed watch link under ``base_url``. It signs in ``labeler_name`` if no one is signed in."""
    labeler = Labeler.objects.get(invited_by=experiment.owner_id, name=labeler_name)
    code = make_code(experiment.pk, labeler.pk, _WATCH_SALT, token.digest)
    return base_url.rstrip("/") + reverse("watch", args=[code])


def open_link(link: str) -> tuple[Experiment, ApiToken, Labeler | None]:
    """Return a watch link's experiment, its API token, and its labeler unless they were removed."""
    code = parse_code(link)
    if code is None:
        raise signing.BadSignature("The link is not complete.")
    experiment = Experiment.objects.filter(pk=code.experiment).first()
    if experiment is None:
        raise WithdrawnError("This link's experiment no longer exists.")
    token = next((each for each in _tokens_of(experiment) if code.check(_WATCH_SALT, each.digest)), None)
    if token is None:
        raise WithdrawnError("This link's API token no longer works.")
    invited = Labeler.objects.select_related("user").filter(
        pk=code.labeler, invited_by=experiment.owner_id, experiments=experiment, user__is_active=True
    )
    return experiment, token, invited.first()


def _tokens_of(experiment: Experiment) -> QuerySet[ApiToken]:
    usable = ApiToken.objects.exclude(expires_at__lte=Now()).filter(user__is_active=True, user__is_staff=True)
    return usable.filter(user=experiment.owner_id, experiment__in=("", experiment.name))

"""API tokens for trainers, labeler accounts, and the codes of links, ``/j/CODE``.

A code consists of numbers and a message authentication code, which must be guessed online:

- ``5-k7f3m2p9qx``, a stored invitation: its ID, and 49 bits.
- ``1-2-b4yz-k7f3m2p9qx``, a labeler's link from the API: the IDs of experiment and labeler, the hour in which
  it was made, and 49 bits.
- ``1-2-b4yz-k7f3m2p9qxhc4w8zt``, the owner link that a run prints: the same, and 84 bits. It also depends on
  the API token of the trainer that requested it. The link, and every session that opened it, stops working
  once that token is revoked, replaced or expired, or its user is no longer staff.
- ``k7f3m2p9qxhc4w8zt``, the link that ``teach site`` prints: ``TEACHER_SIGN_IN_CODE``, 84 random bits.
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

from human_feedback_site.feedback.errors import LinkEndedError, NotFoundError, WithdrawnError
from human_feedback_site.feedback.models import MAX_LABELER_NAME, ApiToken, Experiment, Labeler, Participation
from human_feedback_site.feedback.models.names import name_from, normalized
from human_feedback_site.private import CODE_LENGTH, CODE_SYMBOLS

SITE_ADMIN = "admin"  # username of an embedded site's admin
INVITE_SALT, _STORED_SALT, _OWNER_SALT = "feedback.invite", "feedback.invite.stored", "feedback.owner"
TOKEN_DAYS = 365  # default lifetime of a token
_TOKEN_PREFIX = "tt_"  # noqa: S105  (lets secret scanners recognize a token)
_LABELER_LENGTH = 10  # of the signatures in links that only let people label
_SIGNATURE = rf"[{CODE_SYMBOLS}]{{{_LABELER_LENGTH}}}|[{CODE_SYMBOLS}]{{{CODE_LENGTH}}}"
_CODE = re.compile(rf"((?:[0-9a-z]{{1,12}}-){{0,3}})({_SIGNATURE})")
_HOUR = 3600
_LINK_NUMBERS = 3  # in the codes of links for one labeler


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
    return _link(base_url, INVITE_SALT, (experiment.pk, labeler.pk, _this_hour()))


def stored_url(number: int, base_url: str) -> str:
    """Return the URL of the stored invitation with this ID, always the same."""
    return _link(base_url, _STORED_SALT, (number,))


def stored_invite(token: str) -> int | None:
    """Return the ID of a link's stored invitation; None for a labeler's link."""
    code = parse_code(token)
    if code is None:
        number: int | None = signing.loads(token, salt=INVITE_SALT).get("invite")
        return number
    if len(code.numbers) != 1:
        return None
    if not code.check(_STORED_SALT):
        raise signing.BadSignature("The code was not made by this site.")
    return code.numbers[0]


def accept_invite(token: str) -> tuple[Labeler, Experiment]:
    """Return the labeler and the experiment of a labeler's link.

    Raises BadSignature, :class:`NotFoundError`, or :class:`WithdrawnError` if the labeler was removed.
    """
    code = parse_code(token)
    if code is None:
        claims = signing.loads(token, salt=INVITE_SALT, max_age=settings.INVITE_MAX_AGE_SECONDS)
        number, named = claims["experiment"], Q(name=claims["labeler"])
    elif len(code.numbers) == _LINK_NUMBERS and code.check(INVITE_SALT):
        number, named = code.numbers[0], Q(pk=code.numbers[1])
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
    return take_part(user, experiment)


def take_part(user: User, experiment: Experiment) -> Labeler:
    """Let a user who owns the experiment, or opened its owner link, label it; return the labeler."""
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
class Code:
    """Content of a code whose signature has not been checked yet."""

    numbers: tuple[int, ...]
    signature: str

    @property
    def is_owners(self) -> bool:
        """Return True for a link that opens researchers' pages."""
        return len(self.signature) == CODE_LENGTH

    def check(self, salt: str, secret: str = "") -> bool:
        """Return True if the code was made with this salt and secret; SignatureExpired if too long ago."""
        signatures = [
            _sign(f"{salt}.{secret}", self.numbers, len(self.signature), key)
            for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
        ]
        if not any(constant_time_compare(self.signature, each) for each in signatures):
            return False
        is_dated = len(self.numbers) == _LINK_NUMBERS
        if is_dated and time.time() - self.numbers[-1] * _HOUR > settings.INVITE_MAX_AGE_SECONDS:
            raise signing.SignatureExpired("The link is too old.")
        return True


def parse_code(token: str) -> Code | None:
    """Return the content of a code, or None if ``token`` is something else, such as a link of 0.1.0."""
    found = _CODE.fullmatch(token)
    if found is None:
        return None
    return Code(tuple(map(base36_to_int, found[1].split("-")[:-1])), found[2])


def _link(
    base_url: str, salt: str, numbers: tuple[int, ...], secret: str = "", length: int = _LABELER_LENGTH
) -> str:
    signature = _sign(f"{salt}.{secret}", numbers, length, settings.SECRET_KEY)
    code = "-".join([*map(int_to_base36, numbers), signature])
    return base_url.rstrip("/") + reverse("join", args=[code])


def _this_hour() -> int:
    return int(time.time()) // _HOUR


def _sign(salt: str, numbers: tuple[int, ...], length: int, key: str | bytes) -> str:
    digest = salted_hmac(salt, repr(numbers), secret=key, algorithm="sha256").digest()
    number, symbols = int.from_bytes(digest), ""
    for _ in range(length):
        number, symbol = divmod(number, len(CODE_SYMBOLS))
        symbols += CODE_SYMBOLS[symbol]
    return symbols


def owner_url(experiment: Experiment, labeler_name: str, token: ApiToken, base_url: str) -> str:
    """Return a link whose holder manages and labels the experiment, as ``labeler_name`` if not signed in."""
    labeler = Labeler.objects.get(invited_by=experiment.owner_id, name=labeler_name)
    numbers = experiment.pk, labeler.pk, _this_hour()
    return _link(base_url, _OWNER_SALT, numbers, token.digest, CODE_LENGTH)


def open_owner_link(code: Code) -> tuple[Experiment, ApiToken, Labeler | None]:
    """Return an owner link's experiment, its API token, and its labeler unless they were removed.

    Raises :class:`LinkEndedError` if the link is forged or too old, or its token no longer works.
    """
    experiment = Experiment.objects.filter(pk__in=code.numbers[:-2]).first()
    if experiment is None:
        raise LinkEndedError("This link's experiment does not exist.")
    try:
        token = next((each for each in _tokens_of(experiment) if code.check(_OWNER_SALT, each.digest)), None)
    except signing.SignatureExpired as error:
        raise LinkEndedError("This link is too old.") from error
    if token is None:
        raise LinkEndedError("This link's API token no longer works.")
    invited = Labeler.objects.select_related("user").filter(
        pk=code.numbers[1], invited_by=experiment.owner_id, experiments=experiment, user__is_active=True
    )
    return experiment, token, invited.first()


def open_site_link(code: Code) -> User:
    """Return the admin whom ``teach site``'s link signs in; LinkEndedError if it is not this site's."""
    is_right = bool(settings.SIGN_IN_CODE) and constant_time_compare(code.signature, settings.SIGN_IN_CODE)
    admin = User.objects.filter(username=SITE_ADMIN, is_active=True).first() if is_right else None
    if admin is None:
        raise LinkEndedError("The site was restarted since it printed this link.")
    return admin


def _tokens_of(experiment: Experiment) -> QuerySet[ApiToken]:
    usable = ApiToken.objects.exclude(expires_at__lte=Now()).filter(user__is_active=True, user__is_staff=True)
    return usable.filter(user=experiment.owner_id, experiment__in=("", experiment.name))

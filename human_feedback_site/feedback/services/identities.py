"""Users who sign in at an identity provider: their accounts here, and their roles.

A user is identified by the provider's issuer URL and subject only. A local account is never linked to one at
the provider, because anyone can choose the same username or email address there.
"""

import re
import secrets
import unicodedata
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from human_feedback_site.feedback.errors import ProviderError
from human_feedback_site.feedback.models import MAX_LABELER_NAME, Identity, Labeler
from human_feedback_site.feedback.models.identities import MAX_SUBJECT

_SUFFIX_BYTES = 4
_MAX_NAME = MAX_LABELER_NAME - len("- (SSO)") - 2 * _SUFFIX_BYTES


def user_of(claims: Mapping[str, Any]) -> User:
    """Return the user whom a provider's verified claims identify, with roles updated from the claims.

    The first time, the user is created, with a labeler and without a password. The user may be inactive.

    Raises :class:`ProviderError` if the claims have no valid issuer and subject.
    """
    issuer, subject = claims.get("iss"), claims.get("sub")
    if not isinstance(issuer, str) or not isinstance(subject, str):
        raise ProviderError("The claims iss and sub must be strings.")
    if not 0 < len(subject) <= MAX_SUBJECT or "\0" in subject:
        raise ProviderError(f"The claim sub must have 1 to {MAX_SUBJECT} characters, not null.")
    user = _known(issuer, subject) or _newcomer(issuer, subject, _name_in(claims))
    _update_roles(user, claims)
    return user


def _known(issuer: str, subject: str) -> User | None:
    return User.objects.filter(identity__issuer=issuer, identity__subject=subject).first()


def _newcomer(issuer: str, subject: str, name: str) -> User:
    """Create a user called ``name`` or, if the name is taken, with a random suffix.

    The labeler's name is unique, too, because exports identify labelers by it. No invitation can have it,
    because of the spaces and parentheses.
    """
    for username in (name, f"{name}-{secrets.token_hex(_SUFFIX_BYTES)}"):
        try:
            with transaction.atomic():
                user = User(username=username)
                user.set_unusable_password()
                user.save()
                Identity.objects.create(user=user, issuer=issuer, subject=subject)
                Labeler.objects.create(user=user, name=f"{username} (SSO)", invited_by=user)
        except IntegrityError:  # the username is taken, or a concurrent request created the user
            known = _known(issuer, subject)
            if known is not None:
                return known
        else:
            return user
    raise RuntimeError(f"Found no unused username for {name!r}.")


def _name_in(claims: Mapping[str, Any]) -> str:
    """Return a valid username made from the user's name at the provider, without an email domain."""
    for claim in ("preferred_username", "name"):
        value = claims.get(claim)
        if isinstance(value, str):
            plain = unicodedata.normalize("NFKC", value).partition("@")[0]
            name = re.sub(r"[^\w.-]+", "-", plain).strip("-.")[:_MAX_NAME]
            if name:
                return name
    return "user"


def _update_roles(user: User, claims: Mapping[str, Any]) -> None:
    """Set the user's roles from the claim ``OIDC_ROLE_CLAIM``, unless no role is configured."""
    if not settings.OIDC_RESEARCHERS and not settings.OIDC_ADMINS:
        return
    held = claims.get(settings.OIDC_ROLE_CLAIM)
    values = {each for each in (held if isinstance(held, list) else [held]) if isinstance(each, str)}
    user.is_superuser = not values.isdisjoint(settings.OIDC_ADMINS)
    user.is_staff = user.is_superuser or not values.isdisjoint(settings.OIDC_RESEARCHERS)
    user.save(update_fields=["is_superuser", "is_staff"])

"""Users who sign in at an identity provider: their accounts here, and their roles.

A user is identified by the provider's issuer URL and subject only. A local account is never linked to one at
the provider, because anyone can choose the same username or email address there.
"""

import logging
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
from human_feedback_site.feedback.models.names import name_from, normalized
from human_feedback_site.feedback.models.people import MAX_SUBJECT

_log = logging.getLogger(__name__)
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
    for claim in ("preferred_username", "name"):
        value = claims.get(claim)
        if isinstance(value, str):
            name = name_from(unicodedata.normalize("NFKC", value).partition("@")[0])[:_MAX_NAME]
            if name:
                return name
    return "user"


def _update_roles(user: User, claims: Mapping[str, Any]) -> None:
    """Set the user's roles from the claim ``OIDC_ROLE_CLAIM``, unless no role is configured.

    The roles stay as they are if the claim is missing or can't be read: a provider may leave it out because
    of its size. A role that is lost, or missed by a slip such as the wrong case, is logged.
    """
    claim, researchers, admins = settings.OIDC_ROLE_CLAIM, settings.OIDC_RESEARCHERS, settings.OIDC_ADMINS
    if not researchers and not admins:
        return
    held = _find(claims, claim)
    groups = _groups_in(held)
    if groups is None:
        _warn(f"the roles of {user} are unchanged: the claim {claim} {_obstacle(claims, claim, held)}.")
        return
    had = (user.is_staff, user.is_superuser)
    user.is_superuser = not groups.isdisjoint(map(_plain, admins))
    user.is_staff = user.is_superuser or not groups.isdisjoint(map(_plain, researchers))
    user.save(update_fields=["is_superuser", "is_staff"])
    unmatched = [name for name in (*researchers, *admins) if _plain(name) not in groups]
    if (had[0] and not user.is_staff) or (had[1] and not user.is_superuser):
        lost = "admin" if had[1] else "researcher"
        _warn(f"{user} loses the role {lost}: the claim {claim} is {held!r:.300}.")
    elif close := [name for name in unmatched if any(_resembles(group, name) for group in groups)]:
        _warn(f"{user} gets no role from {', '.join(close)}: the claim {claim} is {held!r:.300}.")


def _find(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim's value, or None. A name such as ``realm_access.roles`` may lead into nested claims."""
    if name in claims:
        return claims[name]
    for outer, value in claims.items():
        if isinstance(value, Mapping) and name.startswith(f"{outer}."):
            found = _find(value, name.removeprefix(f"{outer}."))
            if found is not None:
                return found
    return None


def _groups_in(held: Any) -> set[str] | None:
    """Return the groups in a claim, an array or comma-separated; None if it is missing or malformed."""
    values = [each for each in held.split(",") if each.strip()] if isinstance(held, str) else held
    if not isinstance(values, list):
        return None
    groups = {_plain(each) for each in values if isinstance(each, str)} - {""}
    return groups if groups or not values else None


def _plain(group: str) -> str:
    """Return a group as compared: Keycloak puts a slash before a top-level group's name."""
    return normalized(group.strip().removeprefix("/"))


def _resembles(group: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(_plain(name))}(?![\w-])", group, re.IGNORECASE) is not None


def _obstacle(claims: Mapping[str, Any], claim: str, held: Any) -> str:
    if held is not None:
        return f"must be an array of strings, not {held!r:.300}"
    elsewhere = claims.get("_claim_names")  # Entra's ways of saying that there are more than 200
    if (isinstance(elsewhere, Mapping) and claim in elsewhere) or claims.get("hasgroups"):
        return "was left out, because the user has too many groups; let the provider send only this site's"
    return (
        "is missing; let the provider add it to the ID token or userinfo, or request its scope (OIDC_SCOPES)"
    )


def _warn(text: str) -> None:
    _log.warning("Single sign-on: %s", text)

"""Data for page scripts that send the site the answers still stored in the user's browser."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils.translation import gettext as _


def account_key(user: User) -> str:
    """Return the key under which a browser stores this user's unsaved answers.

    The user ID alone is not unique, because localStorage is per origin, and several sites can share an
    origin: sites under different paths on one host, or sites that run at the same URL at different times
    with different state folders. Two such sites may even be copies of each other. The key therefore includes
    the path prefix and the account's creation time.
    """
    site = f"{settings.FORCE_SCRIPT_NAME}:" if settings.FORCE_SCRIPT_NAME else ""
    return f"{site}{user.pk}-{int(user.date_joined.timestamp())}"


def sender_data(user: User) -> dict[str, Any]:
    """Return the data that a page's script needs to submit the user's unsaved answers."""
    return {
        "account": account_key(user),
        "csrf_cookie": settings.CSRF_COOKIE_NAME,
        "urls": {"labels": reverse("api-labels"), "session": reverse("session")},
        "refused": _("The site rejected an answer:"),
    }

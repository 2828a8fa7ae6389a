"""Data that any page needs to send the signed-in user's unsaved answers from the browser."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils.translation import gettext as _


def account_key(user: User) -> str:
    """Return the key under which a browser stores this user's unsaved answers.

    The user ID alone is not unique: sites with different state folders may use the same URL in turn, and
    each has a user 1. Sites under different paths of one host also share the browser's storage, and one may
    be a copy of another. So the key includes the path prefix and the time the user joined.
    """
    site = f"{settings.FORCE_SCRIPT_NAME}:" if settings.FORCE_SCRIPT_NAME else ""
    return f"{site}{user.pk}-{int(user.date_joined.timestamp())}"


def sender_data(user: User) -> dict[str, Any]:
    """Return the data that a page's script needs to send the unsaved answers of ``user``."""
    return {
        "account": account_key(user),
        "csrf_cookie": settings.CSRF_COOKIE_NAME,
        "urls": {"labels": reverse("api-labels"), "session": reverse("session")},
        "refused": _("The site rejected an answer:"),
    }

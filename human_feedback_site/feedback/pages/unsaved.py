"""What pages know of answers that a browser still keeps for whoever is signed in."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils.translation import gettext as _


def account_key(user: User) -> str:
    """Name the account under which a browser keeps unsaved answers.

    The number alone would not do: on one machine the sites of several state folders may take turns at one
    address, and each has a user 1. Sites of one host share what a browser keeps, and one may be
    another's copy.
    """
    site = f"{settings.FORCE_SCRIPT_NAME}:" if settings.FORCE_SCRIPT_NAME else ""
    return f"{site}{user.pk}-{int(user.date_joined.timestamp())}"


def sender_data(user: User) -> dict[str, Any]:
    """Return what a page's script has to know to send what the browser keeps for ``user``."""
    return {
        "account": account_key(user),
        "csrf_cookie": settings.CSRF_COOKIE_NAME,
        "urls": {"labels": reverse("api-labels"), "session": reverse("session")},
        "refused": _("The site did not take an answer:"),
    }

"""Session check for the site's most frequent requests, which read the session in hand-written SQL."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.utils.crypto import constant_time_compare


def is_session_of(user: User, session: Mapping[str, Any]) -> bool:
    """Return True if ``session`` is the decoded session data of ``user`` and the user is active."""
    return (
        user.is_active
        and session.get(SESSION_KEY) == str(user.pk)
        and session.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        and constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    )

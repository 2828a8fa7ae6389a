"""Reading who is signed in together with what is asked for: these requests are what the site is busy with."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.utils.crypto import constant_time_compare


def is_session_of(user: User, session: Mapping[str, Any]) -> bool:
    """Say whether these are the contents of a session of ``user``, who may be signed in."""
    return (
        user.is_active
        and session.get(SESSION_KEY) == str(user.pk)
        and session.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        and constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    )

"""Environment variables for secrets, which must not be command-line options."""

import os
import re
from urllib.parse import urlsplit

from teacher.errors import ConfigError

REDIS_VARIABLE = "REDIS_URL"
TOKEN_VARIABLE = "TEACHER_TOKEN"  # noqa: S105 (the name of a variable)


def read_redis_url() -> str | None:
    """Return the address of the render queue in ``REDIS_URL``, None if it is not set.

    Raises:
        ConfigError: it is not a Redis URL; the message omits it, as it may contain a password.
    """
    url = os.environ.get(REDIS_VARIABLE, "").strip()
    if not url:
        return None
    try:
        parts = urlsplit(url)
        fits = parts.scheme == "redis" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not re.fullmatch(r"/?\d*", parts.path) or parts.query or parts.fragment:
        raise ConfigError(f"{REDIS_VARIABLE}: expected redis://:password@host:6379/0, got another address")
    return url


def require_token(site_url: str | None) -> None:
    """Raise :class:`ConfigError` if a site is named by URL and its token is missing."""
    if site_url is not None and not os.environ.get(TOKEN_VARIABLE):
        raise ConfigError(f"--site_url needs a token of that site in the variable {TOKEN_VARIABLE}")

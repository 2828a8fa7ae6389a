"""Environment variables for secrets, which can't be passed as command-line options."""

import os
import re
from urllib.parse import urlsplit

from teacher.errors import ConfigError

REDIS_VARIABLE = "REDIS_URL"
TOKEN_VARIABLE = "TEACHER_TOKEN"  # noqa: S105 (the name of a variable)


def read_redis_url() -> str | None:
    """Return the URL of the render queue from ``REDIS_URL``, or None if the variable is not set."""
    url = os.environ.get(REDIS_VARIABLE, "").strip()
    if not url:
        return None
    try:
        parts = urlsplit(url)
        fits = parts.scheme == "redis" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not re.fullmatch(r"/?\d*", parts.path) or parts.query or parts.fragment:
        raise ConfigError(
            f"{REDIS_VARIABLE} is not a valid Redis URL; set it to a URL like redis://:password@host:6379/0"
        )
    return url


def require_token(site_url: str | None) -> None:
    """Raise :class:`ConfigError` if a site URL is given, but ``TEACHER_TOKEN`` is not set."""
    if site_url is not None and not os.environ.get(TOKEN_VARIABLE):
        raise ConfigError(
            "--site_url needs an API token for that site; put it in the environment variable "
            f"{TOKEN_VARIABLE}"
        )

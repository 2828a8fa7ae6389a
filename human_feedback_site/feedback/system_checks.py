"""What Django's checks, and each start of the site, say of settings that work otherwise than it seems."""

from typing import Any

from django.conf import settings
from django.core import checks

from human_feedback_site.environment import LOOPBACK


def sign_in_obstacle() -> str | None:
    """Return in one line why people cannot sign in over http, and the remedy; None where they can.

    Without ``TEACHER_PUBLIC_URL`` a site that serves other machines takes it that they come by https, and its
    cookies are for https alone: a browser that came by http never sends one back.
    """
    expects_https = any(origin.startswith("https://") for origin in settings.CSRF_TRUSTED_ORIGINS)
    if not settings.SESSION_COOKIE_SECURE or expects_https:
        return None
    [host, *_] = [host for host in settings.ALLOWED_HOSTS if host not in LOOPBACK]
    example = "lab.local" if host == "*" else host.removeprefix(".")
    return (
        f"ALLOWED_HOSTS lets people come to {host}, but over http nobody can sign in or use an invitation: "
        f"set TEACHER_PUBLIC_URL to the address in their browsers, such as http://{example}:8000 "
        f"or https://{example}."
    )


@checks.register(checks.Tags.security)
def check_sign_in(**_: Any) -> list[checks.CheckMessage]:
    """Warn where nobody could sign in."""
    obstacle = sign_in_obstacle()
    return [] if obstacle is None else [checks.Warning(obstacle, id="feedback.W001")]

"""System checks for settings that prevent people from signing in."""

from typing import Any

from django.conf import settings
from django.core import checks

from human_feedback_site.environment import LOOPBACK, missing_variables


def sign_in_obstacle() -> str | None:
    """If people can't sign in over HTTP, return a message that explains the fix; otherwise None.

    Without ``TEACHER_PUBLIC_URL``, a site that serves other machines assumes HTTPS and sets secure cookies,
    which browsers never send back over HTTP.
    """
    expects_https = any(origin.startswith("https://") for origin in settings.CSRF_TRUSTED_ORIGINS)
    if not settings.SESSION_COOKIE_SECURE or expects_https:
        return None
    [host, *_] = [host for host in settings.ALLOWED_HOSTS if host not in LOOPBACK]
    example = "lab.local" if host == "*" else host.removeprefix(".")
    return (
        f"ALLOWED_HOSTS allows {host}, but no one can sign in or use an invitation over http. "
        f"Set TEACHER_PUBLIC_URL to the URL that people open in their browsers, such as "
        f"http://{example}:8000 or https://{example}."
    )


@checks.register(checks.Tags.security)
def check_sign_in(**_: Any) -> list[checks.CheckMessage]:
    """Warn if the settings prevent people from signing in over HTTP."""
    obstacle = sign_in_obstacle()
    return [] if obstacle is None else [checks.Warning(obstacle, id="feedback.W001")]


@checks.register(checks.Tags.security)
def check_single_sign_on(**_: Any) -> list[checks.CheckMessage]:
    """Report an error if only some of the variables that single sign-on needs are set."""
    problem = missing_variables(settings)
    return [] if problem is None else [checks.Error(problem, id="feedback.E001")]

"""Reads and checks the environment variables of single sign-on (``OIDC_...``)."""

import importlib.util
import os

from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.environment import LOOPBACK, host_of, read_url


def is_safe(url: str) -> bool:
    """Return True if a URL's scheme is https, or if its host is this machine."""
    return url.startswith("https://") or (url.startswith("http://") and host_of(url) in LOOPBACK)


def read_issuer(name: str) -> str | None:
    """Read an OpenID Connect issuer's URL from the environment variable ``name``; None if unset.

    The scheme must be https, unless the identity provider runs on this machine.
    """
    value = read_url(name)
    if value is not None and not is_safe(value):
        raise ImproperlyConfigured(
            f"{name} must begin with https:// unless the provider runs on this machine, not {value!r}."
        )
    return value


def read_scopes(name: str, default: str) -> str:
    """Read space-separated OpenID Connect scopes from the environment variable ``name``.

    The scope ``openid``, which every provider requires, is added if it is missing.
    """
    scopes = os.environ.get(name, "").split() or default.split()
    return " ".join(dict.fromkeys(["openid", *scopes]))


def require_package() -> None:
    """Raise ``ImproperlyConfigured`` if the package that single sign-on needs is not installed."""
    if importlib.util.find_spec("mozilla_django_oidc") is None:
        raise ImproperlyConfigured(
            "Single sign-on (OIDC_ISSUER) needs mozilla-django-oidc, which is not installed; "
            "to install: pip install 'rl-teacher[sso]'"
        )


def missing_variables(settings: object) -> str | None:
    """If the variables of single sign-on are incomplete, return a message that names them; otherwise None.

    Args:
        settings: the site's settings.
    """
    required = {
        "OIDC_ISSUER": "OIDC_ISSUER",
        "OIDC_CLIENT_ID": "OIDC_RP_CLIENT_ID",
        "OIDC_CLIENT_SECRET": "OIDC_RP_CLIENT_SECRET",
    }
    optional = {name: name for name in ("OIDC_NAME", "OIDC_RESEARCHERS", "OIDC_ADMINS")}
    given = [name for name, setting in (required | optional).items() if getattr(settings, setting)]
    missing = [name for name in required if name not in given]
    if not missing or not given:
        return None
    return (
        "Single sign-on needs OIDC_ISSUER, OIDC_CLIENT_ID and OIDC_CLIENT_SECRET; "
        f"set {' and '.join(missing)}, or unset {' and '.join(given)}."
    )


def require_all_variables(settings: object) -> None:
    """Raise ``ImproperlyConfigured`` if :func:`missing_variables` returns a message for the settings."""
    problem = missing_variables(settings)
    if problem is not None:
        raise ImproperlyConfigured(problem)

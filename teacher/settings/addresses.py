"""Addresses in settings: whether what says where people label fits together."""

import socket
from urllib.parse import urlsplit

from teacher.errors import ConfigError, one_line
from teacher.settings.checks import Check

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)


def site_checks(site_url: str | None, storage: str | None, bind: str, public_url: str | None) -> list[Check]:
    """Whether what says where people label fits together; see the fields of ``TeachConfig``."""
    store = storage or ""
    return [
        ("site_url", site_url is None or is_http_url(site_url), "expected http(s)://host[/path]"),
        (
            "storage",
            "://" not in store or store.startswith("s3://"),
            "expected s3://bucket/prefix or a folder",
        ),
        (
            "bind",
            bind not in _WILDCARDS or public_url is not None,
            "needs --public_url, the address by which others reach this machine",
        ),
        ("public_url", public_url is None or is_http_url(public_url), "expected http(s)://host[/path]"),
        (
            "site_url",
            site_url is None or store.startswith("s3://"),
            "a site elsewhere cannot read a folder here, so it needs --storage s3://bucket/prefix",
        ),
    ]


def require_own_address(bind: str) -> None:
    """Raise ConfigError where nothing on this machine can listen at an address."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET  # as the site does
    try:
        with socket.socket(family) as trial:
            trial.bind((bind or "an empty one", 0))  # which is all of them to the system
    except (OSError, TypeError) as error:  # TypeError: a name that cannot be encoded
        raise ConfigError(
            f"--bind: expected an address of this machine, such as 127.0.0.1 or 0.0.0.0, got {bind!r} "
            f"({one_line(error)})"
        ) from error


def is_http_url(text: str) -> bool:
    """Return whether a text is an address of a site."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False

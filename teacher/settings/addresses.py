"""Settings of the labeling site, shared by ``teach`` and the wrapper, and their checks."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from teacher.errors import ConfigError, one_line
from teacher.settings.checks import Fits, Problem
from teacher.settings.options import FeedbackName

_WORDS = Fits("1 to 40 characters", lambda text: 0 < len(text.strip()) <= len(text) <= 40)
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)


RATING_WORDS = ("lowest_rating", "highest_rating")


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """Settings of the labeling site and its labelers, which ``teach`` and the wrapper have."""

    prompt: Annotated[
        str,
        "the question that labelers see",
        Fits("a sentence of up to 500 characters", lambda text: 0 < len(text.strip()) <= 500),
    ] = "Judge how well the agent does."
    lowest_rating: Annotated[str | None, "what labelers read beside rating 1 (default: worst)", _WORDS] = None
    highest_rating: Annotated[str | None, "what labelers read beside rating 5 (default: best)", _WORDS] = None
    site_url: Annotated[
        str | None,
        "URL of the labeling site, with its token in TEACHER_TOKEN (default: a site on this machine)",
    ] = None
    storage: Annotated[str | None, "clip store: s3://bucket/prefix or a folder"] = None
    state_dir: Annotated[str, "folder for the data of this machine's site"] = "state"
    bind: Annotated[str, "IP address or host name that this machine's site listens on"] = "127.0.0.1"
    public_url: Annotated[str | None, "URL at which labelers reach this machine's site"] = None

    def site_problems(self) -> Iterator[Problem]:
        """Yield the problems of these settings."""
        store = self.storage or ""
        for name in ("site_url", "public_url"):
            if getattr(self, name) is not None and not is_http_url(getattr(self, name)):
                yield name, "expected http(s)://host[/path]"
        if "://" in store and not store.startswith("s3://"):
            yield "storage", "expected s3://bucket/prefix or a folder"
        if self.bind in _WILDCARDS and self.public_url is None:
            yield "bind", "needs public_url, the URL at which labelers reach this machine"
        if self.site_url is not None and not store.startswith("s3://"):
            yield (
                "site_url",
                "a site on another machine can't read local files; also pass --storage s3://bucket/prefix",
            )

    def word_problems(self, feedback: FeedbackName) -> Iterator[Problem]:
        """Yield a problem for each word beside a rating if the questions are of another kind."""
        for name in RATING_WORDS:
            if feedback not in {"rating", "study"} and getattr(self, name) is not None:
                yield name, "has no effect without --feedback=rating; leave it out"


def require_own_address(bind: str) -> None:
    """Raise :class:`ConfigError` if this machine can't listen on the address ``bind``."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET  # as the site does
    try:
        with socket.socket(family) as trial:
            trial.bind((bind or "an empty one", 0))  # an empty host would mean all addresses
    except (OSError, TypeError) as error:  # TypeError: a name that cannot be encoded
        raise ConfigError(
            f"--bind: can't listen on {bind!r} ({one_line(error)}); use an address of this machine, such as "
            "127.0.0.1 or 0.0.0.0"
        ) from error


def is_http_url(text: str) -> bool:
    """Return True if ``text`` is an HTTP or HTTPS URL."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False

"""The site's public URL, and the IP addresses of clients behind proxies."""

import ipaddress
import logging
import re
import threading

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request

from human_feedback_site.environment import origin_of

_log = logging.getLogger(__name__)
_complained = threading.Event()
_SHOWN = 60  # number of characters of an unreadable entry that the log shows
# Formats that proxies use: 192.0.2.1, 192.0.2.1:5123, 2001:db8::1, [2001:db8::1], [2001:db8::1]:5123.
_BRACKETED = re.compile(r"\[([^]]*)\](:\d+)?")
_WITH_PORT = re.compile(r"(.*):\d+")


def base_url(request: HttpRequest | Request) -> str:
    """Return the site's ``scheme://host`` from ``TEACHER_PUBLIC_URL`` or, if unset, from the request.

    The path is left out, because ``reverse`` already adds the site's path prefix to every URL.
    """
    return origin_of(settings.PUBLIC_URL or request.build_absolute_uri("/"))


def client_address(request: HttpRequest) -> str:
    """Return the IP address of the client that sent a request.

    Each trusted proxy appends the IP address of its peer to ``X-Forwarded-For``. The client's entry is
    therefore the ``TEACHER_PROXIES``-th from the right; entries further left may be forged.

    If there are fewer entries than trusted proxies, the request bypassed the proxies, and the IP address of
    the connection is returned. This address is also returned if the client's entry is empty or isn't a valid
    IP address; a warning is logged the first time.
    """
    peer = str(request.META.get("REMOTE_ADDR", ""))
    forwarded = request.headers.get("X-Forwarded-For", "")
    hops = forwarded.split(",")  # an empty entry counts: without it, one further left would take its place
    if not forwarded.strip() or not 0 < settings.PROXIES <= len(hops):
        return peer
    entry = _bare(hops[-settings.PROXIES])
    address = _address(entry)
    if address is None and not _complained.is_set():
        _complained.set()
        _log.warning(
            "X-Forwarded-For has %r where an IP address was expected. All clients with such an entry share "
            "the rate limit of %s. Check the proxy's configuration and TEACHER_PROXIES. This is logged only "
            "once.",
            entry[:_SHOWN],
            peer,
        )
    return address or peer


def _bare(entry: str) -> str:
    """Strip spaces, and the quotes that some proxies put around an address with a port."""
    return entry.strip().removeprefix('"').removesuffix('"').strip()


def _address(entry: str) -> str | None:
    bracketed = _BRACKETED.fullmatch(entry)
    if bracketed is not None:
        return _parsed(bracketed[1]) if ":" in bracketed[1] else None
    whole = _parsed(entry)
    with_port = _WITH_PORT.fullmatch(entry)
    return whole if whole or with_port is None else _parsed(with_port[1])


def _parsed(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))  # without the zone, which is local to a host
    except ValueError:
        return None

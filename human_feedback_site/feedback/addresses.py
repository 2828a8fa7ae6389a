"""Where people reach the site, and from where."""

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
_SHOWN = 60  # characters of an entry in the log
# As proxies write it: 192.0.2.1, 192.0.2.1:5123, 2001:db8::1, [2001:db8::1], [2001:db8::1]:5123.
_BRACKETED = re.compile(r"\[([^]]*)\](:\d+)?")
_WITH_PORT = re.compile(r"(.*):\d+")


def base_url(request: HttpRequest | Request) -> str:
    """Return what links begin with: the public ``scheme://host``, or else the one the request came to.

    The path below which the site is, ``reverse`` puts in front of every address.
    """
    return origin_of(settings.PUBLIC_URL or request.build_absolute_uri("/"))


def client_address(request: HttpRequest) -> str:
    """Return the address a request came from.

    Each of the ``TEACHER_PROXIES`` that stand in front appends to ``X-Forwarded-For`` whom it heard;
    what is further left in it anybody may have written. A request that passed fewer of them came directly.
    The first entry that cannot be read is logged: all who come so are counted as one.
    """
    peer = str(request.META.get("REMOTE_ADDR", ""))
    hops = [hop for hop in map(_bare, request.headers.get("X-Forwarded-For", "").split(",")) if hop]
    if not 0 < settings.PROXIES <= len(hops):
        return peer
    entry = hops[-settings.PROXIES]
    address = _address(entry)
    if address is None and not _complained.is_set():
        _complained.set()
        _log.warning(
            "Expected an address in X-Forwarded-For, found %r: everybody who comes so counts as %s when too "
            "many passwords are tried. Check what the proxy writes, and TEACHER_PROXIES. This is said once.",
            entry[:_SHOWN],
            peer,
        )
    return address or peer


def _bare(entry: str) -> str:
    """Return an entry without blanks, and without the quotes that some proxies put around a port."""
    return entry.strip().removeprefix('"').removesuffix('"').strip()


def _address(entry: str) -> str | None:
    """Return the address in an entry of ``X-Forwarded-For``, without its port; None where there is none."""
    bracketed = _BRACKETED.fullmatch(entry)
    if bracketed is not None:
        return _parsed(bracketed[1]) if ":" in bracketed[1] else None
    whole = _parsed(entry)
    with_port = _WITH_PORT.fullmatch(entry)
    return whole if whole or with_port is None else _parsed(with_port[1])


def _parsed(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))  # a zone means nothing elsewhere
    except ValueError:
        return None

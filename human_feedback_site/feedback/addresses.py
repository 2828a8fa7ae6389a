"""Where people reach the site, and from where."""

import ipaddress

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request


def base_url(request: HttpRequest | Request) -> str:
    """Return the site's address for links: the public one, or else the one the request came to."""
    return settings.PUBLIC_URL or request.build_absolute_uri("/").rstrip("/")


def client_address(request: HttpRequest) -> str:
    """Return the address a request came from.

    Each of the ``TEACHER_PROXIES`` that stand in front appends to ``X-Forwarded-For`` whom it heard;
    what is further left in it anybody may have written. A request that passed fewer of them came directly.
    """
    peer = str(request.META.get("REMOTE_ADDR", ""))
    hops = [hop.strip() for hop in request.headers.get("X-Forwarded-For", "").split(",")]
    if not 0 < settings.PROXIES <= len(hops):
        return peer
    try:
        return str(ipaddress.ip_address(hops[-settings.PROXIES]))
    except ValueError:
        return peer

"""Where people reach the site."""

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request


def base_url(request: HttpRequest | Request) -> str:
    """Return the site's address for links: the public one, or else the one the request came to."""
    return settings.PUBLIC_URL or request.build_absolute_uri("/").rstrip("/")

"""The identity provider: its metadata, read from the issuer's URL, and the URL for signing out there."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

import requests
from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from human_feedback_site.environment import is_safe
from human_feedback_site.feedback.errors import ProviderError

ID_TOKEN = "oidc_id_token"  # noqa: S105 (session key under which mozilla-django-oidc stores the ID token)
ALGORITHMS = ("RS256", "ES256")
_REQUIRED = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_OPTIONAL = ("userinfo_endpoint", "end_session_endpoint")
_log = logging.getLogger(__name__)


@cache
def metadata(issuer: str) -> Mapping[str, Any]:
    """Return the metadata of the provider with this issuer URL (OpenID Connect Discovery 1.0)."""
    url = f"{issuer}/.well-known/openid-configuration"
    try:
        response = requests.get(url, timeout=settings.OIDC_TIMEOUT)
        response.raise_for_status()
        found = response.json()
    except requests.RequestException as error:
        raise ProviderError(f"{url} can't be read: {error}") from error
    if not isinstance(found, dict) or str(found.get("issuer")).rstrip("/") != issuer:
        raise ProviderError(f"{url} must contain the issuer {issuer}; correct OIDC_ISSUER.")
    for name in (*_REQUIRED, *_OPTIONAL):
        endpoint = found.get(name)
        if not (isinstance(endpoint, str) and is_safe(endpoint)) and (name in _REQUIRED or endpoint):
            raise ProviderError(f"In {url}, {name} must be an https URL, not {endpoint!r}.")
    return found


def signing_algorithm(provider: Mapping[str, Any]) -> str:
    """Return the algorithm of the provider's ID tokens: RS256 or, if it isn't supported, ES256."""
    supported = provider.get("id_token_signing_alg_values_supported", [ALGORITHMS[0]])
    for algorithm in ALGORITHMS:
        if algorithm in supported:
            return algorithm
    raise ProviderError(f"The provider must sign ID tokens with {' or '.join(ALGORITHMS)}, not {supported}.")


def sign_out_url(request: HttpRequest) -> str | None:
    """Return the URL that ends the user's session at the provider, and then leads to the sign-in page.

    Return None if the user didn't sign in there, or if the provider has no such URL or can't be reached.
    """
    id_token = request.session.get(ID_TOKEN)
    if id_token is None or not settings.SINGLE_SIGN_ON:
        return None
    try:
        endpoint = metadata(settings.OIDC_ISSUER).get("end_session_endpoint")
    except ProviderError as error:
        _log.warning("A user signed out here, but not at the identity provider: %s", error)
        return None
    if endpoint is None:
        return None
    parameters = {
        "id_token_hint": id_token,
        "client_id": settings.OIDC_RP_CLIENT_ID,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("login")),
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"

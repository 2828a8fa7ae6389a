"""Authentication backend that verifies the identity provider's response and finds or creates the user."""

from typing import Any

import jwt
import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend
from mozilla_django_oidc.utils import import_from_settings

from human_feedback_site.feedback.errors import ProviderError
from human_feedback_site.feedback.pages.sso import provider
from human_feedback_site.feedback.services import identities

_CLOCK_SKEW = 60  # seconds
_ENDPOINTS = {
    "OIDC_OP_AUTHORIZATION_ENDPOINT": "authorization_endpoint",
    "OIDC_OP_TOKEN_ENDPOINT": "token_endpoint",
    "OIDC_OP_USER_ENDPOINT": "userinfo_endpoint",
    "OIDC_OP_JWKS_ENDPOINT": "jwks_uri",
}


class Discovered:
    """Mixin that reads the provider's endpoints from its metadata instead of from Django's settings."""

    @staticmethod
    def get_settings(name: str, *default: Any) -> Any:
        """Return a setting of mozilla-django-oidc."""
        if name in _ENDPOINTS:
            return provider.metadata(settings.OIDC_ISSUER).get(_ENDPOINTS[name])
        if name == "OIDC_RP_SIGN_ALGO":
            return provider.signing_algorithm(provider.metadata(settings.OIDC_ISSUER))
        if name == "OIDC_TOKEN_USE_BASIC_AUTH":  # the method that providers support unless they say otherwise
            methods = provider.metadata(settings.OIDC_ISSUER).get("token_endpoint_auth_methods_supported")
            return "client_secret_post" not in (methods or ())
        return import_from_settings(name, *default)


class SingleSignOn(Discovered, OIDCAuthenticationBackend):  # type: ignore[misc]  # the package has no types
    """Backend that authenticates the user whom the provider's authorization code belongs to."""

    def __init__(self) -> None:
        """Leave the settings to :meth:`authenticate`.

        Django creates all backends for each password sign-in, which must not need the provider.
        """

    # Only the callback passes these arguments, so Django skips this backend when it checks a password.
    def authenticate(self, request: HttpRequest, *, nonce: str, code_verifier: str) -> User | None:
        """Exchange the authorization code for tokens, and return their user, or raise ProviderError."""
        try:
            super().__init__()
            user: User | None = super().authenticate(request, nonce=nonce, code_verifier=code_verifier)
        except (requests.RequestException, jwt.PyJWTError, SuspiciousOperation) as error:
            raise ProviderError(f"{type(error).__name__}: {error}") from error
        except (LookupError, TypeError, ValueError) as error:  # a response of the wrong shape
            raise ProviderError(f"The response is malformed ({type(error).__name__}: {error})") from error
        return user

    def get_token(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the response of the token endpoint, which must contain both tokens."""
        tokens = super().get_token(payload)
        if not isinstance(tokens, dict) or not {"id_token", "access_token"} <= tokens.keys():
            raise ProviderError("The token endpoint must return an id_token and an access_token.")
        return tokens

    def get_payload_data(self, token: str, key: Any) -> dict[str, Any]:
        """Return the claims of an ID token after verifying signature, issuer, audience and expiration.

        mozilla-django-oidc itself verifies neither the issuer nor the audience.
        """
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[self.OIDC_RP_SIGN_ALGO],
            issuer=provider.metadata(settings.OIDC_ISSUER)["issuer"],
            audience=self.OIDC_RP_CLIENT_ID,
            leeway=_CLOCK_SKEW,
            options={"require": ["iss", "sub", "aud", "exp", "iat", "nonce"]},
        )
        if claims.get("azp", self.OIDC_RP_CLIENT_ID) != self.OIDC_RP_CLIENT_ID:
            raise ProviderError("The ID token was issued to a different client.")
        return claims

    def get_or_create_user(self, access_token: str, id_token: str, payload: dict[str, Any]) -> User:
        """Return the user whom the ID token identifies; create the user at the first sign-in."""
        claims = payload
        if self.OIDC_OP_USER_ENDPOINT is not None:
            info = self.get_userinfo(access_token, id_token, payload)
            if not isinstance(info, dict) or info.get("sub") != payload["sub"]:
                raise ProviderError("The ID token and the userinfo endpoint must name the same user.")
            claims = info | payload
        return identities.user_of(claims)

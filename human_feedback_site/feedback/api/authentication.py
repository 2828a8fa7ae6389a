"""API authentication: API tokens for trainers, browser sessions for people."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication, permissions
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from human_feedback_site.feedback.addresses import client_address
from human_feedback_site.feedback.errors import TooManyAttemptsError
from human_feedback_site.feedback.models import ApiToken
from human_feedback_site.feedback.services.accounts import token_of
from human_feedback_site.feedback.services.limits import count_wrong_token


class TokenAuthentication(authentication.BaseAuthentication):
    """Authenticates requests by the API token in their ``Authorization: Bearer tt_...`` header."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's user and the token, or None if the request has no token.

        Raises DRF's ``AuthenticationFailed`` if the token is invalid or has expired, and ``Throttled`` after
        too many invalid tokens from one IP address.
        """
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token_of(secret.strip())
        if token is None:
            try:
                count_wrong_token(client_address(request._request))
            except TooManyAttemptsError as error:
                raise Throttled(error.wait, "Too many wrong API tokens from this IP address.") from None
            raise AuthenticationFailed(
                "The API token is invalid or has expired; create one with: teach site token USER"
            )
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Return the value of the ``WWW-Authenticate`` header for 401 responses."""
        return "Bearer"


class WithinScope(permissions.BasePermission):
    """Permission that restricts an API token created for one experiment to that experiment."""

    message = "This API token is limited to a different experiment."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return True for a browser session, or if the API token may access the experiment in the URL."""
        token = request.auth
        return not isinstance(token, ApiToken) or token.experiment in {"", view.kwargs["name"]}


class SessionAuthentication(authentication.SessionAuthentication):
    """DRF's session authentication, but with status 401 instead of 403 if the user isn't signed in.

    To avoid extra queries, a view may define ``recognize(request)``, which loads the user along with the data
    that the view needs and returns ``(user, data)``; the data becomes ``request.auth``. If it returns None,
    DRF's session authentication is used.
    """

    def authenticate(self, request: Request) -> tuple[User, Any] | None:
        """Return ``(user, data)``, or None if the user isn't signed in."""
        recognize = getattr((request.parser_context or {}).get("view"), "recognize", None)
        found: tuple[User, Any] | None = recognize(request) if recognize is not None else None
        if found is None:
            return super().authenticate(request)
        self.enforce_csrf(request)
        return found

    def authenticate_header(self, request: Request) -> str:
        """Return the value of the ``WWW-Authenticate`` header for 401 responses."""
        return "Session"


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """OpenAPI description of :class:`TokenAuthentication`."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Return the OpenAPI security scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "API token, created with `teach site token USER`.",
        }


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """OpenAPI description of :class:`SessionAuthentication`."""

    target_class = SessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Return the OpenAPI security scheme."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "Browser session; requests that write also need the X-CSRFToken header.",
        }

"""Who is asking: a trainer by its token, a person by the browser's session."""

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
    """``Authorization: Bearer tt_...``."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's user and the token, or None where the request carries none."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token_of(secret.strip())
        if token is None:
            try:
                count_wrong_token(client_address(request._request))
            except TooManyAttemptsError as error:
                raise Throttled(error.wait, "Too many wrong API tokens came from this address.") from None
            raise AuthenticationFailed(
                "The API token is not valid, or has expired; make one with: manage.py create_token USER"
            )
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge that goes with status 401."""
        return "Bearer"


class WithinScope(permissions.BasePermission):
    """A token that is good for one experiment opens no other."""

    message = "This API token is good for another experiment alone."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Say whether the address is within what the token is good for; sessions have no such limit."""
        token = request.auth
        return not isinstance(token, ApiToken) or token.experiment in {"", view.kwargs["name"]}


class SessionAuthentication(authentication.SessionAuthentication):
    """Django's session and CSRF protection; not signed in is 401, unlike "not allowed".

    A view may have a shorter way to find out who is asking, along with what it needs to know besides: its
    ``recognize`` returns both, the latter for ``request.auth``, or None where it is not so simple.
    """

    def authenticate(self, request: Request) -> tuple[User, Any] | None:
        """Return the session's user, and what the view found besides."""
        recognize = getattr((request.parser_context or {}).get("view"), "recognize", None)
        found: tuple[User, Any] | None = recognize(request) if recognize is not None else None
        if found is None:
            return super().authenticate(request)
        self.enforce_csrf(request)
        return found

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge that goes with status 401."""
        return "Session"


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema describes tokens."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Return the OpenAPI security scheme."""
        return {"type": "http", "scheme": "bearer", "description": "Made by `manage.py create_token USER`."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema describes sessions."""

    target_class = SessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Return the OpenAPI security scheme."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "The browser's session; writing also needs the X-CSRFToken header.",
        }

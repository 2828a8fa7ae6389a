"""Base classes for API views, and health check endpoints."""

from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from rest_framework.permissions import IsAdminUser, IsAuthenticated
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from human_feedback_site.feedback import health
from human_feedback_site.feedback.api.authentication import (
    SessionAuthentication,
    TokenAuthentication,
    WithinScope,
)
from human_feedback_site.feedback.api.problems import unavailable
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.selectors.experiments import own_experiment


def user_of(request: Request) -> User:
    """Return the request's user; there always is one, because all API views require authentication."""
    return cast(User, request.user)


def valid(serializer: type[Serializer[Any]], data: Any) -> dict[str, Any]:
    """Validate ``data`` with a serializer and return the validated data.

    Raises DRF's ``ValidationError`` if ``data`` is invalid.
    """
    bound = serializer(data=data)
    bound.is_valid(raise_exception=True)
    return cast(dict[str, Any], bound.validated_data)


class ResearcherView(APIView):
    """Base class for endpoints used by trainers with an API token and by staff in a browser."""

    authentication_classes = (TokenAuthentication, SessionAuthentication)
    permission_classes = (IsAuthenticated, IsAdminUser, WithinScope)

    def experiment(self, name: str) -> Experiment:
        """Return the user's experiment called ``name``; raises :class:`NotFoundError` if there is none."""
        return own_experiment(user_of(self.request), name)


class LabelerView(APIView):
    """Base class for endpoints used by labelers in a browser, or by scripts that imitate the browser."""

    authentication_classes = (SessionAuthentication,)
    permission_classes = (IsAuthenticated,)


@csrf_exempt  # so that a method that isn't allowed gets 405 instead of a CSRF error
@require_safe
def livez(request: HttpRequest) -> JsonResponse:
    """Return the ID of this site instance, for liveness checks."""
    return JsonResponse({"instance": settings.INSTANCE_ID})


@csrf_exempt
@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """Readiness check: return 200 if the database responds and is fully migrated, otherwise 503."""
    obstacle = health.obstacle()
    ready = {"status": "ready", "instance": settings.INSTANCE_ID}
    return JsonResponse(ready) if obstacle is None else unavailable(obstacle)

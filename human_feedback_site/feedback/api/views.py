"""Base classes for API views, health check endpoints, and the metrics endpoint."""

from collections.abc import Sequence
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
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
from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.selectors.experiments import own_experiment


def user_of(request: Request) -> User:
    """Return the request's user; there always is one, because all API views require authentication."""
    return cast(User, request.user)


def valid(serializer: type[Serializer[Any]], data: Any) -> dict[str, Any]:
    """Validate ``data`` with a serializer, or raise DRF's ``ValidationError``."""
    bound = serializer(data=data)
    bound.is_valid(raise_exception=True)
    return cast(dict[str, Any], bound.validated_data)


def by_side(items: Sequence[Any], left: str = "left", right: str = "right") -> dict[str, Any]:
    """Return two items under their names; None under both names if there are not two."""
    return dict(zip((left, right), items if len(items) == 2 else (None, None), strict=True))


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
    """Readiness check: return 200 and the kinds of questions if the site can do its work, otherwise 503."""
    obstacle = health.obstacle()
    ready = {"status": "ready", "instance": settings.INSTANCE_ID, "kinds": list(KINDS)}
    return JsonResponse(ready) if obstacle is None else unavailable(obstacle)


@csrf_exempt
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics for Prometheus, or 404 if the request lacks the token ``settings.METRICS_TOKEN``."""
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    token = settings.METRICS_TOKEN
    if token is None or scheme.lower() != "bearer" or not constant_time_compare(secret.strip(), token):
        raise Http404
    return _exposition(request)


@require_safe
def _exposition(request: HttpRequest) -> HttpResponse:
    from human_feedback_site.feedback.api import prometheus  # noqa: PLC0415 (optional dependency)

    return HttpResponse(prometheus.exposition(), content_type=prometheus.CONTENT_TYPE)

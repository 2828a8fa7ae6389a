"""What the views of the API share, and what probes ask."""

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
    """Return who is asking; the permission classes have refused everybody who is not signed in."""
    return cast(User, request.user)


def valid(serializer: type[Serializer[Any]], data: Any) -> dict[str, Any]:
    """Return the validated ``data``; raises DRF's ``ValidationError``."""
    bound = serializer(data=data)
    bound.is_valid(raise_exception=True)
    return cast(dict[str, Any], bound.validated_data)


class ResearcherView(APIView):
    """For trainers with a token, and staff in a browser."""

    authentication_classes = (TokenAuthentication, SessionAuthentication)
    permission_classes = (IsAuthenticated, IsAdminUser, WithinScope)

    def experiment(self, name: str) -> Experiment:
        """Return the caller's experiment ``name``."""
        return own_experiment(user_of(self.request), name)


class LabelerView(APIView):
    """For people who are signed in, and scripts that do as their browsers would."""

    authentication_classes = (SessionAuthentication,)
    permission_classes = (IsAuthenticated,)


@csrf_exempt  # so that a method which is not allowed hears just that
@require_safe
def livez(request: HttpRequest) -> JsonResponse:
    """Say that the process is alive, and which one it is."""
    return JsonResponse({"instance": settings.INSTANCE_ID})


@csrf_exempt
@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """Say which site this is, and whether the database answers and has all tables of this version."""
    obstacle = health.obstacle()
    ready = {"status": "ready", "instance": settings.INSTANCE_ID}
    return JsonResponse(ready) if obstacle is None else unavailable(obstacle)

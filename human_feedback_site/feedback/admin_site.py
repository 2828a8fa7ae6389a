"""Custom Django admin site, for superusers only."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from human_feedback_site.feedback.models import WebhookEndpoint
from human_feedback_site.feedback.pages.joining import AdminSignInForm, SignOut

FOLDED = frozenset(
    {
        *("Arrival", "Attempts", "Decision", "Episode", "Identity", "InvitePart"),
        *("Lease", "PredictedRewards", "PromptVersion", "SequenceCounter", "TrainingPoint", "Undo"),
    }
)
"""Names of rarely used models, which the admin's model list collapses."""


class AdminSite(admin.AdminSite):
    """Admin site for superusers; its lists show all users' data.

    Researchers use the pages of their own experiments instead.
    """

    site_header = site_title = "RL-Teacher"
    login_form = AdminSignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Return True if the user is an active superuser."""
        return request.user.is_active and request.user.is_superuser

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the admin's sign-in page, or redirect to the site's if only that one has single sign-on."""
        if settings.SINGLE_SIGN_ON and request.method == "GET" and not request.user.is_authenticated:
            wanted = request.GET.get("next") or reverse("admin:index")
            return redirect(f"{reverse('login')}?{urlencode({'next': wanted})}")
        return super().login(request, extra_context)

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Sign out as on the site's own pages."""
        return SignOut.as_view()(request)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the app list with rarely used models moved to a collapsed section.

        These models are in the app's ``folded`` list. On their own admin pages, the app's ``unfolded`` key is
        True, which expands the section.
        """
        apps: list[Any] = super().get_app_list(request, app_label)
        for app in apps:
            if app["app_label"] == "feedback":
                folded = [model for model in app["models"] if model["object_name"] in FOLDED]
                app["models"] = [model for model in app["models"] if model not in folded]
                app["folded"] = folded
                app["unfolded"] = any(request.path.startswith(model["admin_url"]) for model in folded)
        return apps

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Show the admin's start page, with a warning for each webhook that the site has disabled."""
        for endpoint in WebhookEndpoint.objects.filter(enabled=False, failing_since__isnull=False):
            messages.warning(request, f"The webhook {endpoint} was disabled because it failed for days.")
        return super().index(request, extra_context)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Set the "View site" link to the home page.

        If the site has a path prefix, Django's own link would lack the trailing slash.
        """
        return {**super().each_context(request), "site_url": reverse("home")}

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Wrap a view to reject query strings that contain NUL, which PostgreSQL can't store in text."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def readable(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if any("\0" in value for values in request.GET.lists() for value in (values[0], *values[1])):
                raise BadRequest("The URL must not contain a null character.")
            return inner(request, *args, **kwargs)

        return readable

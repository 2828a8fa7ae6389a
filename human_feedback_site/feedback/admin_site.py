"""Who may enter Django's admin, and how."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.urls import reverse

from human_feedback_site.feedback.pages.sign_in import AdminSignInForm

FOLDED = frozenset(
    {
        *("Arrival", "Attempts", "Decision", "Episode", "InvitePart"),
        *("Lease", "PromptVersion", "SequenceCounter", "TrainingPoint", "Undo"),
    }
)
"""Models that nobody looks for day by day: how the site keeps count, and what is shown elsewhere, too."""


class AdminSite(admin.AdminSite):
    """For superusers alone: its lists show everybody's objects. Researchers have their experiments' pages."""

    site_header = site_title = "RL-Teacher"
    login_form = AdminSignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Say whether somebody is the admin."""
        return request.user.is_active and request.user.is_superuser

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Put what is seldom looked for under a fold; it is open where the page is of something in it."""
        apps: list[Any] = super().get_app_list(request, app_label)
        for app in apps:
            if app["app_label"] == "feedback":
                folded = [model for model in app["models"] if model["object_name"] in FOLDED]
                app["models"] = [model for model in app["models"] if model not in folded]
                app["folded"] = folded
                app["unfolded"] = any(request.path.startswith(model["admin_url"]) for model in folded)
        return apps

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Let "View site" lead home; below a path, Django's own link has no slash at its end."""
        return {**super().each_context(request), "site_url": reverse("home")}

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Refuse what PostgreSQL has no text for: Django would hand it over and fail."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def readable(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if any("\0" in value for values in request.GET.lists() for value in (values[0], *values[1])):
                raise BadRequest("An address must not have a null character.")
            return inner(request, *args, **kwargs)

        return readable

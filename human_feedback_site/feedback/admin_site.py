"""Who may enter Django's admin, and how."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.core.exceptions import BadRequest
from django.http import HttpRequest

from human_feedback_site.feedback.pages.sign_in import AdminSignInForm


class AdminSite(admin.AdminSite):
    """For superusers alone: its lists show everybody's objects. Researchers have their experiments' pages."""

    site_header = site_title = "RL-Teacher"
    login_form = AdminSignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Say whether somebody is the admin."""
        return request.user.is_active and request.user.is_superuser

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Refuse what PostgreSQL has no text for: Django would hand it over and fail."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def readable(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if any("\0" in value for values in request.GET.lists() for value in (values[0], *values[1])):
                raise BadRequest("An address must not have a null character.")
            return inner(request, *args, **kwargs)

        return readable

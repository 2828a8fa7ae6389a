"""Who may enter Django's admin, and how."""

from django.contrib import admin
from django.http import HttpRequest

from human_feedback_site.feedback.pages.sign_in import AdminSignInForm


class AdminSite(admin.AdminSite):
    """For superusers alone: its lists show everybody's objects. Researchers have their experiments' pages."""

    site_header = site_title = "RL-Teacher"
    login_form = AdminSignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Say whether somebody is the admin."""
        return request.user.is_active and request.user.is_superuser

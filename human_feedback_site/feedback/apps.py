"""Django's registration of the app."""

from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class FeedbackConfig(AppConfig):
    """The feedback app."""

    name = "human_feedback_site.feedback"
    verbose_name = "Feedback"

    def ready(self) -> None:
        """Register the checks of settings."""
        from human_feedback_site.feedback import system_checks  # noqa: F401, PLC0415 (registers them)


class SiteAdminConfig(admin_apps.AdminConfig):
    """Django's admin, for the admin alone."""

    default = False  # it is named in the settings
    default_site = "human_feedback_site.feedback.admin_site.AdminSite"

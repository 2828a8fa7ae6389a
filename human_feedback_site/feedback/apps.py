"""Django app configuration."""

from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class FeedbackConfig(AppConfig):
    """Configuration of the feedback app."""

    name = "human_feedback_site.feedback"
    verbose_name = "Feedback"

    def ready(self) -> None:
        """Register the system checks; let usernames have combining marks."""
        from django.contrib.auth.models import User  # noqa: PLC0415 (needs the app registry)

        from human_feedback_site.feedback import system_checks  # noqa: F401, PLC0415 (registers them)
        from human_feedback_site.feedback.models.names import validate_username  # noqa: PLC0415

        _, *others = User._meta.get_field("username").validators  # the first one is Django's
        User._meta.get_field("username").validators = [validate_username, *others]


class SiteAdminConfig(admin_apps.AdminConfig):
    """Configuration that makes Django use the site's own :class:`AdminSite`."""

    default = False  # the settings name it explicitly
    default_site = "human_feedback_site.feedback.admin_site.AdminSite"

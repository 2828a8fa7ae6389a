"""Django's registration of the app."""

from django.apps import AppConfig


class FeedbackConfig(AppConfig):
    """The feedback app."""

    name = "human_feedback_site.feedback"
    verbose_name = "Feedback"

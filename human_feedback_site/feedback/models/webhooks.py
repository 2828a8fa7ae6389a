"""Webhooks: the endpoints that administrators register, and the events queued for them."""

from uuid import uuid4

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback.models.experiments import Experiment


class WebhookEndpoint(models.Model):
    """A URL that receives events, and the secret that signs them.

    There is one Boolean field for each type of event, such as ``training_waiting`` for ``training.waiting``.
    """

    class Format(models.TextChoices):
        """Format of the events that are sent."""

        JSON = "json", "JSON"
        SLACK = "slack", "Slack and Mattermost"

    name = models.CharField(
        max_length=100, unique=True, help_text="The log shows this name instead of the URL."
    )
    url = models.CharField("URL", max_length=500)
    format = models.CharField(
        max_length=10,
        choices=Format.choices,
        default=Format.JSON,
        db_default=Format.JSON,
        help_text="Chats need a message to show; programs get the data of the event.",
    )
    training_waiting = models.BooleanField(
        "training is waiting",
        default=True,
        help_text="Training has waited for five minutes, and nobody has labeled.",
    )
    experiment_finished = models.BooleanField(
        default=True, help_text="An experiment's run has ended, or someone finished it on the site."
    )
    labeler_blocked = models.BooleanField(
        default=True, help_text="A labeler was stopped by attention checks, or stopped or blocked by someone."
    )
    enabled = models.BooleanField(
        default=True,
        help_text="Events are sent only while this is on. Turning it on or off resets its failures.",
    )
    secret = models.CharField(max_length=100, editable=False)
    failing_since = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="All attempts since this time have failed."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class WebhookDelivery(models.Model):
    """An event for one endpoint, created in the transaction that made the change it reports."""

    class Event(models.TextChoices):
        """Type of an event, as sent."""

        TRAINING_WAITING = "training.waiting", "training is waiting"
        EXPERIMENT_FINISHED = "experiment.finished", "experiment finished"
        LABELER_BLOCKED = "labeler.blocked", "labeler blocked"
        TEST = "test", "test"

    class Status(models.TextChoices):
        """Status of a delivery: it has attempts left, succeeded, or was given up."""

        PENDING = "pending", "pending"
        DELIVERED = "delivered", "delivered"
        FAILED = "failed", "failed"

    uuid = models.UUIDField(
        unique=True, default=uuid4, help_text="The header webhook-id, which is the same in all attempts."
    )
    endpoint = models.ForeignKey(WebhookEndpoint, models.CASCADE, related_name="deliveries")
    experiment = models.ForeignKey(
        Experiment, models.CASCADE, null=True, blank=True, related_name="webhook_deliveries"
    )
    event = models.CharField(max_length=20, choices=Event.choices)
    body = models.TextField(help_text="The JSON that is sent.")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now, help_text="Time of the next attempt.")
    last_error = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "webhook deliveries"
        indexes = (models.Index(fields=("due_at",), name="pending_delivery", condition=Q(status="pending")),)

    def __str__(self) -> str:
        return str(self.uuid)

"""Admin pages for webhooks: the endpoints, and the events sent to them."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Max, QuerySet
from django.forms import ModelForm, TextInput
from django.http import HttpRequest, HttpResponse
from django.utils.formats import localize
from django.utils.timezone import localtime

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import (
    Audited,
    ModelAdmin,
    ReadOnly,
    SecretOnce,
    audited,
)
from human_feedback_site.feedback.errors import DeliveryError
from human_feedback_site.feedback.forms import SeenForm
from human_feedback_site.feedback.outbound import check_url
from human_feedback_site.feedback.services import webhooks

EVENTS = ("training_waiting", "experiment_finished", "labeler_blocked")


class EndpointForm(SeenForm):
    """Form for a webhook's endpoint that refuses URLs that events could never be sent to."""

    class Meta:
        widgets: ClassVar = {"url": TextInput(attrs={"class": "vLargeTextField"})}

    def clean_url(self) -> str:
        """Return the URL, or add an error if it is malformed or its address isn't allowed."""
        url: str = self.cleaned_data["url"]
        try:
            check_url(url)
        except DeliveryError as error:
            self.add_error("url", str(error))
        return url


class FailingFilter(admin.SimpleListFilter):
    """Filter for endpoints by whether the last attempts failed."""

    title = "failing"
    parameter_name = "failing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1", "Yes"), ("0", "No")]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[models.WebhookEndpoint]
    ) -> QuerySet[models.WebhookEndpoint]:
        if self.value() not in {"1", "0"}:
            return queryset
        return queryset.filter(failing_since__isnull=self.value() == "0")


@admin.register(models.WebhookEndpoint)
class WebhookEndpointAdmin(SecretOnce, Audited, ModelAdmin):
    """Endpoints. An endpoint's secret is shown only when it is created or replaced."""

    SHOWN = ("New secret", "admin/feedback/webhookendpoint/created.html", "endpoint")
    form = EndpointForm
    list_display = ("name", "format", "state", "events", "last_delivery")
    list_filter = ("enabled", FailingFilter)
    search_fields = ("name", "url")
    fieldsets = (
        (None, {"fields": ("name", "url", "format", "enabled")}),
        ("Events to send", {"fields": EVENTS}),
    )
    actions = ("send_test", "replace_secret")

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.WebhookEndpoint]:
        found: QuerySet[models.WebhookEndpoint] = super().get_queryset(request)
        return found.annotate(last_delivery=Max("deliveries__delivered_at"))

    @admin.display(ordering="last_delivery")
    def last_delivery(self, endpoint: Any) -> Any:
        return endpoint.last_delivery

    @admin.display(ordering="failing_since")
    def state(self, endpoint: models.WebhookEndpoint) -> str:
        """Return whether the endpoint is on or off, has been failing, or was disabled by the site."""
        if endpoint.failing_since is None:
            return "on" if endpoint.enabled else "off"
        since = f"failing since {localize(localtime(endpoint.failing_since))}"
        return since if endpoint.enabled else f"disabled, {since}"

    @admin.display
    def events(self, endpoint: models.WebhookEndpoint) -> str:
        chosen = [name.replace("_", ".") for name in EVENTS if getattr(endpoint, name)]
        return ", ".join(str(models.WebhookDelivery.Event(event).label) for event in chosen)

    send_test = audited(
        webhooks.queue_tests,
        "{} test event(s) queued; see Webhook deliveries in a minute. Disabled webhooks get none.",
        "Send a test event",
        permissions=["change"],
    )

    @admin.action(permissions=["change"], description="Replace the secret with a new one")
    def replace_secret(
        self, request: HttpRequest, chosen: QuerySet[models.WebhookEndpoint]
    ) -> HttpResponse | None:
        """Give the selected endpoint a new secret and show it; the old one is no longer used."""
        texts = "Select exactly one webhook.", "Replaced the secret."
        return self.replace(request, chosen, webhooks.replace_secret, texts)

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Save the endpoint. A new one gets a secret; turning one on or off resets its failures."""
        if not change:
            webhooks.create_endpoint(obj)
            return
        super().save_model(request, obj, form, change)
        if "enabled" in form.changed_data:
            webhooks.reset_failures(obj)


@admin.register(models.WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnly, ModelAdmin):
    """Events queued for endpoints, with the result of the last attempt."""

    list_display = (
        "event",
        "endpoint",
        "experiment",
        "status",
        "attempts",
        "last_error",
        "created_at",
    )
    list_filter = ("status", "event", "endpoint")
    list_select_related = ("endpoint", "experiment")
    search_fields = ("experiment__name", "endpoint__name", "=uuid")
    date_hierarchy = "created_at"
    fields = (
        *("uuid", "endpoint", "event", "experiment", "body", "status"),
        *("attempts", "due", "last_error", "created_at", "delivered_at"),
    )
    readonly_fields = ("due",)

    @admin.display(description="next attempt")
    def due(self, delivery: models.WebhookDelivery) -> Any:
        return delivery.due_at if delivery.status == models.WebhookDelivery.Status.PENDING else None

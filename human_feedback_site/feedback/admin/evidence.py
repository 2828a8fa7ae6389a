"""Read-only admin pages for labels, undos, leases, decisions and the admin log."""

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import Audited, ModelAdmin, ReadOnly
from human_feedback_site.feedback.services import moderation


@admin.register(models.Label)
class LabelAdmin(ReadOnly, ModelAdmin):
    """Labels exactly as the labelers submitted them."""

    list_display = (
        *("created_at", "experiment", "labeler", "choice", "swapped", "answer"),
        *("status", "response_ms", "shown_ms", "undone", "comparison"),
    )
    list_filter = ("status", "choice", "comparison__experiment", "labeler")
    list_select_related = ("comparison__experiment", "labeler", "undo")
    search_fields = ("=uuid", "=comparison__uuid", "labeler__name")
    date_hierarchy = "created_at"
    show_full_result_count = False

    @admin.display(ordering="comparison__experiment")
    def experiment(self, label: models.Label) -> models.Experiment:
        """Return the label's experiment."""
        return label.comparison.experiment

    @admin.display(boolean=True)
    def undone(self, label: models.Label) -> bool:
        """Return True if the labeler undid the label or a researcher withdrew it."""
        return hasattr(label, "undo")


@admin.register(models.Undo)
class UndoAdmin(ReadOnly, ModelAdmin):
    """Labels undone by the labeler, or withdrawn by the researcher named in ``retracted_by``."""

    list_display = ("created_at", "label", "labeler", "retracted_by", "lease")
    list_filter = (("retracted_by", admin.RelatedOnlyFieldListFilter), "label__comparison__experiment")
    list_select_related = ("label__labeler", "retracted_by", "lease")
    search_fields = ("=uuid", "=label__uuid", "label__labeler__name")
    date_hierarchy = "created_at"

    @admin.display(ordering="label__labeler")
    def labeler(self, undo: models.Undo) -> models.Labeler:
        """Return the labeler who gave the undone label."""
        return undo.label.labeler


@admin.register(models.Lease)
class LeaseAdmin(ReadOnly, Audited, ModelAdmin):
    """Leases, each of which assigns a comparison to a labeler for a limited time."""

    list_display = ("created_at", "labeler", "comparison", "purpose", "swapped", "shown", "expires_at")
    list_filter = ("purpose", "shown", "comparison__experiment", "labeler")
    list_select_related = ("labeler", "comparison")
    search_fields = ("=uuid", "=comparison__uuid", "labeler__name")
    date_hierarchy = "created_at"
    show_full_result_count = False
    actions = ("requeue",)

    @admin.action(
        permissions=["view"],
        description="Requeue: end these leases so that other labelers get the comparisons",
    )
    def requeue(self, request: HttpRequest, chosen: QuerySet[models.Lease]) -> None:
        """End the selected leases that haven't expired; answers submitted afterward might not be counted."""
        self.act(request, chosen, moderation.end_claims, "{} ended.")


@admin.register(models.Decision)
class DecisionAdmin(ReadOnly, ModelAdmin):
    """Decisions, newest first; trainers receive each experiment's decisions in ``seq`` order."""

    list_display = ("experiment", "seq", "comparison", "decision", "probability", "n_labels", "created_at")
    list_filter = ("decision", "experiment")
    list_select_related = ("experiment", "comparison")
    search_fields = ("=comparison__uuid", "experiment__name")
    ordering = ("-id",)
    date_hierarchy = "created_at"
    show_full_result_count = False


@admin.register(LogEntry)
class LogEntryAdmin(ReadOnly, ModelAdmin):
    """Log of changes made in the admin, with the user who made them."""

    list_display = ("action_time", "user", "content_type", "object_repr", "action_flag", "get_change_message")
    list_filter = ("action_flag", "content_type", ("user", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "content_type")
    search_fields = ("object_repr", "change_message", "user__username")
    date_hierarchy = "action_time"
    show_full_result_count = False

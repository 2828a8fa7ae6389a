"""What was answered, as it was answered: to be read, not changed."""

from django.contrib import admin

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import ModelAdmin, ReadOnly


@admin.register(models.Label)
class LabelAdmin(ReadOnly, ModelAdmin):
    """Answers."""

    list_display = (
        *("created_at", "experiment", "labeler", "choice", "swapped", "verdict"),
        *("status", "response_ms", "shown_ms", "undone", "comparison"),
    )
    list_filter = ("status", "choice", "comparison__experiment", "labeler")
    list_select_related = ("comparison__experiment", "labeler", "undo")
    search_fields = ("=uuid", "=comparison__uuid", "labeler__name")
    date_hierarchy = "created_at"

    @admin.display(ordering="comparison__experiment")
    def experiment(self, label: models.Label) -> models.Experiment:
        """Return what it belongs to."""
        return label.comparison.experiment

    @admin.display(boolean=True)
    def undone(self, label: models.Label) -> bool:
        """Say whether it was withdrawn."""
        return hasattr(label, "undo")


@admin.register(models.Undo)
class UndoAdmin(ReadOnly, ModelAdmin):
    """Withdrawn answers."""

    list_display = ("created_at", "label", "labeler", "lease")
    list_select_related = ("label__labeler", "lease")
    search_fields = ("=uuid", "=label__uuid", "label__labeler__name")
    date_hierarchy = "created_at"

    @admin.display(ordering="label__labeler")
    def labeler(self, undo: models.Undo) -> models.Labeler:
        """Return whose answer it was."""
        return undo.label.labeler


@admin.register(models.Lease)
class LeaseAdmin(ReadOnly, ModelAdmin):
    """Claims on comparisons."""

    list_display = ("created_at", "labeler", "comparison", "purpose", "swapped", "shown", "expires_at")
    list_filter = ("shown", "comparison__experiment", "labeler")
    list_select_related = ("labeler", "comparison")
    search_fields = ("=uuid", "=comparison__uuid", "labeler__name")
    date_hierarchy = "created_at"


@admin.register(models.Decision)
class DecisionAdmin(ReadOnly, ModelAdmin):
    """The feed that trainers read."""

    list_display = ("experiment", "seq", "comparison", "decision", "probability", "n_labels", "created_at")
    list_filter = ("decision", "experiment")
    list_select_related = ("experiment", "comparison")
    search_fields = ("=comparison__uuid", "experiment__name")
    ordering = ("-id",)

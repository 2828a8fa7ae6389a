"""Admin pages for comparisons and, read-only, for labels, undos, leases, decisions and the admin log."""

from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import QuerySet
from django.forms import Script
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import Audited, ModelAdmin, ReadOnly, TabularInline, audited
from human_feedback_site.feedback.kinds import ITEMS, PAIR
from human_feedback_site.feedback.models.querysets import with_decisions
from human_feedback_site.feedback.services import moderation


class LabelInline(ReadOnly, TabularInline):
    """All labels ever given to a comparison, including undone ones."""

    model = models.Label
    fields = (
        *("labeler", "choice", "swapped", "answer", "status"),
        *("response_ms", "shown_ms", "reason", "created_at", "undone"),
    )
    readonly_fields = ("created_at", "undone")
    extra = 0

    @admin.display(boolean=True)
    def undone(self, label: models.Label) -> bool:
        return hasattr(label, "undo")


class DecisionInline(ReadOnly, TabularInline):
    """All decisions about a comparison, oldest first."""

    model = models.Decision
    fields = ("seq", "decision", "probability", "n_labels", "created_at")
    readonly_fields = ("created_at",)
    ordering = ("seq",)
    extra = 0


@admin.register(models.Comparison)
class ComparisonAdmin(ReadOnly, Audited, ModelAdmin):
    """Comparisons, with their clips and labels."""

    list_display = (
        "uuid",
        "experiment",
        "phase",
        "step",
        "priority",
        "status",
        "n_labels",
        "outcome",
        "created_at",
    )
    list_filter = ("status", "phase", "kind", "gold", "experiment")
    date_hierarchy = "created_at"
    list_select_related = ("experiment",)
    search_fields = ("=uuid", "experiment__name")
    actions = (
        *("ask_again", "cancel", "requeue"),
        *(f"{answer}_is_known" for answer in PAIR.texts),
        *("decision_is_known", "is_not_known"),
    )
    fields = (
        ("uuid", "experiment", "created_at"),
        ("kind", "phase", "step", "priority"),
        ("status", "n_labels", "wanted", "outcome", "gold"),
        "clips",
        tuple(f"{item}_return" for item in ITEMS),
        tuple(f"{item}_key" for item in ITEMS),
    )
    readonly_fields = ("created_at", "outcome", "clips")
    inlines = (LabelInline, DecisionInline)
    show_full_result_count = False

    class Media:
        js = (Script("feedback/js/media.js", type="module"),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Comparison]:
        return with_decisions(super().get_queryset(request))

    ask_again = audited(
        moderation.request_label, "One more label requested for {} comparison(s).", "Request one more label"
    )
    cancel = audited(moderation.close, "{} closed.", "Cancel: stop requesting labels")
    requeue = audited(moderation.reopen, "{} reopened.", "Requeue: reopen canceled comparisons for labeling")
    decision_is_known = audited(
        moderation.make_gold,
        "{} used as attention checks.",
        "Use as attention check: the decision is right",
    )
    is_not_known = audited(
        moderation.make_ordinary, "{} no longer used as attention checks.", "Stop using as attention check"
    )

    @admin.display(ordering="decision")
    def outcome(self, comparison: Any) -> str | None:
        return comparison.decision or None

    @admin.display()
    def clips(self, comparison: models.Comparison) -> SafeString:
        if comparison.clips_gone or comparison.experiment.deletion_asked_at is not None:
            return format_html("<em>{}</em>", "clips unavailable")
        shown = [
            (reverse(f"{item}-clip", args=[comparison.experiment.name, comparison.uuid]),)
            for item in ITEMS[: comparison.question.size]
        ]
        return format_html_join(" ", '<video src="{}" width="256" controls muted loop></video>', shown)


for _answer, _text in PAIR.texts.items():
    _act = partial(moderation.make_gold, answer=_answer)
    _said = f"Use as attention check: {_text}"
    setattr(ComparisonAdmin, f"{_answer}_is_known", audited(_act, "{} used as attention checks.", _said))


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
        return label.comparison.experiment

    @admin.display(boolean=True)
    def undone(self, label: models.Label) -> bool:
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

    requeue = audited(
        moderation.end_claims,
        "{} ended.",
        "Requeue: end these leases so that other labelers get the comparisons",
    )


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

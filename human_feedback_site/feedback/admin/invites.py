"""Invitations, who came by them, and what they agreed to."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import Audited, ModelAdmin, ReadOnly
from human_feedback_site.feedback.services import invites


@admin.register(models.Invite)
class InviteAdmin(ReadOnly, Audited, ModelAdmin):
    """Invitations, to look at and to revoke; they are made on the experiment's own page."""

    list_display = (
        *("experiment", "kind", "labeler", "note", "platform"),
        *("uses", "limit", "answers_wanted", "expires_at", "revoked_at"),
    )
    list_filter = ("kind", "platform", ("revoked_at", admin.EmptyFieldListFilter), "experiment")
    list_select_related = ("experiment", "labeler")
    search_fields = ("experiment__name", "labeler__name", "note")
    actions = ("revoke",)

    @admin.action(permissions=["view"], description="Revoke: let nobody in by these any more")
    def revoke(self, request: HttpRequest, chosen: QuerySet[models.Invite]) -> None:
        """Revoke those that are open."""
        self.act(request, chosen, invites.revoke, "{} revoked.")


@admin.register(models.InvitePart)
class InvitePartAdmin(ReadOnly, ModelAdmin):
    """Parts of labelers who came by another link since."""

    list_display = ("participation", "invite", "answered", "completed_at", "completed_answers")
    list_filter = ("participation__experiment",)
    list_select_related = ("participation", "invite")
    search_fields = ("participation__labeler__name", "participation__experiment__name")


@admin.register(models.Arrival)
class ArrivalAdmin(ReadOnly, Audited, ModelAdmin):
    """Whom a platform sent, to be forgotten; their numbers are on the experiment's list of participants."""

    list_display = ("experiment", "invite", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment", "invite")
    search_fields = ("=participant",)
    search_help_text = "A participant's whole number"
    fields = ("experiment", "invite", "created_at")
    actions = ("forget",)

    @admin.action(permissions=["view"], description="Forget: delete the platform's numbers, keep the labels")
    def forget(self, request: HttpRequest, chosen: QuerySet[models.Arrival]) -> None:
        """Delete them."""
        self.act(request, chosen, invites.forget_participants, "{} forgotten.")


@admin.register(models.ConsentText)
class ConsentTextAdmin(ReadOnly, ModelAdmin):
    """Every version of a consent text; they are written on the experiment's own page."""

    list_display = ("experiment", "beginning", "digest", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment",)
    search_fields = ("experiment__name", "text")

    @admin.display(description="text")
    def beginning(self, text: Any) -> str:
        """Return how it begins."""
        return str(text.text[:80])


@admin.register(models.ConsentAnswer)
class ConsentAnswerAdmin(ReadOnly, ModelAdmin):
    """Who agreed to which version, and when."""

    list_display = ("labeler", "experiment", "text", "agreed", "created_at")
    list_filter = ("agreed", "text__experiment")
    list_select_related = ("labeler", "text__experiment")
    search_fields = ("labeler__name", "text__experiment__name")

    @admin.display(ordering="text__experiment")
    def experiment(self, answer: models.ConsentAnswer) -> str:
        """Return the experiment's name."""
        return answer.text.experiment.name

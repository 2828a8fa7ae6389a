"""Admin pages for invitations, participants sent by recruitment platforms, and consent."""

from typing import Any

from django.contrib import admin

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import Audited, ModelAdmin, ReadOnly, audited
from human_feedback_site.feedback.services import invites


@admin.register(models.Invite)
class InviteAdmin(ReadOnly, Audited, ModelAdmin):
    """Invitations. They are created on the experiment's page; here they can be viewed and revoked."""

    list_display = (
        *("experiment", "kind", "labeler", "note", "platform"),
        *("uses", "limit", "answers_wanted", "expires_at", "revoked_at"),
    )
    list_filter = ("kind", "platform", ("revoked_at", admin.EmptyFieldListFilter), "experiment")
    list_select_related = ("experiment", "labeler")
    search_fields = ("experiment__name", "labeler__name", "note")
    actions = ("revoke",)

    revoke = audited(invites.revoke, "{} revoked.", "Revoke: no one else can join with these links")


@admin.register(models.InvitePart)
class InvitePartAdmin(ReadOnly, ModelAdmin):
    """Each labeler's answer counts for earlier invitations."""

    list_display = ("participation", "invite", "answered", "completed_at", "completed_answers")
    list_filter = ("participation__experiment",)
    list_select_related = ("participation", "invite")
    search_fields = ("participation__labeler__name", "participation__experiment__name")


@admin.register(models.Arrival)
class ArrivalAdmin(ReadOnly, Audited, ModelAdmin):
    """Participants sent by a recruitment platform. Their platform IDs are not shown in the admin."""

    list_display = ("experiment", "invite", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment", "invite")
    search_fields = ("=participant",)
    search_help_text = "Enter a participant's complete platform ID."
    fields = ("experiment", "invite", "created_at")
    actions = ("forget",)

    forget = audited(
        invites.forget_participants, "{} forgotten.", "Forget: delete the platform IDs but keep the labels"
    )


@admin.register(models.ConsentText)
class ConsentTextAdmin(ReadOnly, ModelAdmin):
    """All versions of the consent texts, which are edited on the experiment's invitations page."""

    list_display = ("experiment", "beginning", "digest", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment",)
    search_fields = ("experiment__name", "text")

    @admin.display(description="text")
    def beginning(self, text: Any) -> str:
        return str(text.text[:80])


@admin.register(models.ConsentAnswer)
class ConsentAnswerAdmin(ReadOnly, ModelAdmin):
    """Records of which labelers agreed to or declined each consent text."""

    list_display = ("labeler", "experiment", "text", "agreed", "created_at")
    list_filter = ("agreed", "text__experiment")
    list_select_related = ("labeler", "text__experiment")
    search_fields = ("labeler__name", "text__experiment__name")

    @admin.display(ordering="text__experiment")
    def experiment(self, answer: models.ConsentAnswer) -> str:
        return answer.text.experiment.name

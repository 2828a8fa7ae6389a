"""Admin pages for users, labelers, their participation in experiments, API tokens and rate limits."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm as DjangoUserChangeForm
from django.contrib.auth.models import Group, User
from django.db.models import Count, ForeignKey, Q, QuerySet
from django.forms import ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import (
    Audited,
    DeletedOnlyUnused,
    GuardedModelAdmin,
    ModelAdmin,
    ReadOnly,
    SecretOnce,
    audited,
)
from human_feedback_site.feedback.forms import SeenForm
from human_feedback_site.feedback.kinds import by_kind
from human_feedback_site.feedback.models import ApiToken, Identity
from human_feedback_site.feedback.services import accounts, invites, moderation


def _everywhere(labelers: QuerySet[models.Labeler]) -> QuerySet[models.Participation]:
    return models.Participation.objects.filter(labeler__in=labelers)


@admin.register(models.Labeler)
class LabelerAdmin(DeletedOnlyUnused, Audited, ModelAdmin):
    """Admin page for assigning labelers to experiments, and for blocking and readmitting them."""

    list_display = ("name", "kind", "user", "invited_by", "active", "answers", "created_at")
    list_filter = ("experiments", "invited_by")
    list_select_related = ("user", "invited_by")
    search_fields = ("name", "user__username")
    fields = ("name", "experiments", "user", "invited_by", "created_at")
    # The name can't be changed, because invitations refer to it.
    readonly_fields = ("name", "user", "invited_by", "created_at")
    filter_horizontal = ("experiments",)
    date_hierarchy = "created_at"
    actions = ("block", "readmit")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Labeler]:
        found: QuerySet[models.Labeler] = super().get_queryset(request)
        return found.annotate(answers=Count("labels", filter=~Q(labels__status=models.Label.Status.VOID)))

    @admin.action(description="Block in all experiments: stop them and withdraw all their labels")
    def block(self, request: HttpRequest, chosen: QuerySet[models.Labeler]) -> None:
        """Block the selected labelers in all their experiments and withdraw their labels."""
        by = cast("User", request.user)
        self.act(
            request,
            chosen,
            lambda rows: moderation.block(_everywhere(rows), by),
            "Blocked; labels withdrawn: {}.",
        )

    readmit = audited(
        lambda rows: moderation.readmit(_everywhere(rows)),
        "Readmitted in {} experiment(s).",
        "Readmit in all experiments: give them questions again and clear attention-check results",
        permissions=None,
    )

    @admin.display(ordering="answers")
    def answers(self, labeler: Any) -> int:
        return int(labeler.answers)

    @admin.display(boolean=True, ordering="user__is_active")
    def active(self, labeler: models.Labeler) -> bool:
        return labeler.user.is_active


@admin.register(models.Participation)
class ParticipationAdmin(ReadOnly, Audited, ModelAdmin):
    """Each labeler's participation in an experiment: check results, and the stop time if stopped."""

    list_display = (
        *("labeler", "experiment", "standing", "answers", "undone"),
        *("gold_checks", "watch_checks", "worth", "stopped_at"),
    )
    list_filter = (("stopped_at", admin.EmptyFieldListFilter), "experiment")
    list_select_related = ("labeler", "experiment")
    search_fields = ("labeler__name", "experiment__name")
    date_hierarchy = "created_at"
    actions = ("stop", "block", "readmit")

    @admin.display(description="standing")
    def standing(self, participation: models.Participation) -> str:
        return participation.notice or "good"

    @admin.display(description="estimated reliability")
    def worth(self, participation: models.Participation) -> str | None:
        """Return the labeler's estimated balanced accuracy per kind, in percent; None if not estimated."""
        matrices = by_kind(participation.confusion)
        rates = [sum(row[at] for at, row in enumerate(matrix)) / len(matrix) for matrix in matrices.values()]
        return ", ".join(f"{rate:.0%}" for rate in rates) or None

    stop = audited(moderation.stop, "{} stopped.", "Stop: give them no more questions")

    @admin.action(permissions=["view"], description="Block: stop them and withdraw all their labels")
    def block(self, request: HttpRequest, chosen: QuerySet[models.Participation]) -> None:
        """Stop the selected labelers and withdraw their labels; decisions are recomputed without them."""
        by = cast("User", request.user)
        self.act(request, chosen, lambda rows: moderation.block(rows, by), "Blocked; labels withdrawn: {}.")

    readmit = audited(
        moderation.readmit,
        "{} readmitted.",
        "Readmit: give them questions again and clear attention-check results",
    )


@admin.register(models.ApiToken)
class ApiTokenAdmin(SecretOnce, ModelAdmin):
    """API tokens; deleting one revokes it. The secret is shown only when a token is created or rotated."""

    SHOWN = ("New token", "admin/feedback/apitoken/created.html", "token")
    list_display = ("name", "user", "experiment", "created_at", "expires_at", "last_used_at")
    list_filter = ("user",)
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "experiment")
    fields = ("user", "name", "experiment", "expires_at")
    actions = ("rotate",)

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return the form's initial data: the default expiry date."""
        return {"expires_at": timezone.now() + timedelta(days=accounts.TOKEN_DAYS)}

    def formfield_for_foreignkey(
        self, db_field: "ForeignKey[Any, Any]", request: HttpRequest, **options: Any
    ) -> "ModelChoiceField[Any] | None":
        """Offer only active staff users as token owners, because only they may use the API."""
        return super().formfield_for_foreignkey(
            db_field, request, **options, queryset=User.objects.filter(is_staff=True, is_active=True)
        )

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Generate the token and save only its hash; set ``obj.secret`` so that the response can show it."""
        obj.secret = accounts.issue_token(obj)

    @admin.action(permissions=["delete"], description="Replace the token with a new one")
    def rotate(self, request: HttpRequest, chosen: QuerySet[models.ApiToken]) -> HttpResponse | None:
        """Give the selected token a new secret and show it; the old secret stops working immediately."""
        texts = "Select exactly one token to replace.", "Replaced with a new secret."
        return self.replace(request, chosen, accounts.rotate_token, texts)


@admin.register(models.Attempts)
class AttemptsAdmin(ReadOnly, ModelAdmin):
    """Rate-limit counters for sign-ins and invalid API tokens; deleting a row lifts the limit."""

    list_display = ("digest", "count", "ends_at")
    search_fields = ("=digest",)
    date_hierarchy = "ends_at"

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Return True if the user has Django's delete permission for this model."""
        return ModelAdmin.has_delete_permission(self, request, obj)


if TYPE_CHECKING:  # generic only in the type stubs
    _UserChangeForm: TypeAlias = DjangoUserChangeForm[User]
    _UserAdmin: TypeAlias = DjangoUserAdmin[User]
else:
    _UserChangeForm, _UserAdmin = DjangoUserChangeForm, DjangoUserAdmin

admin.site.unregister([User, Group])


class UserChangeForm(SeenForm, _UserChangeForm):
    """Variant of Django's user change form that rejects conflicting edits."""


@admin.register(User)
class UserAdmin(DeletedOnlyUnused, GuardedModelAdmin, _UserAdmin):
    """Admin page for users. A user that other rows reference can't be deleted, only deactivated."""

    LOST_WITH_IT = frozenset({ApiToken})
    form = UserChangeForm


@admin.register(Group)
class GroupAdmin(GuardedModelAdmin, DjangoGroupAdmin):
    """Admin page for user groups, which the site itself does not use."""

    form = SeenForm


@admin.register(Identity)
class IdentityAdmin(ReadOnly, ModelAdmin):
    """Admin page for users' accounts at the identity provider."""

    list_display = ("user", "issuer", "subject", "created_at")
    list_select_related = ("user",)
    search_fields = ("user__username", "=subject")
    date_hierarchy = "created_at"


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

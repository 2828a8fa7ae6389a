"""Labelers, how they do, and the tokens of trainers."""

from datetime import timedelta
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import Count, ForeignKey, Q, QuerySet
from django.forms import ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import Audited, DeletedOnlyUnused, ModelAdmin, ReadOnly
from human_feedback_site.feedback.services import accounts, moderation


@admin.register(models.Labeler)
class LabelerAdmin(DeletedOnlyUnused, Audited, ModelAdmin):
    """Labelers come from invitations; here they are given other experiments, or taken out of them."""

    list_display = ("name", "user", "invited_by", "active", "answers", "created_at")
    list_filter = ("experiments", "invited_by")
    list_select_related = ("user", "invited_by")
    search_fields = ("name", "user__username")
    fields = ("name", "experiments", "user", "invited_by", "created_at")
    readonly_fields = ("name", "user", "invited_by", "created_at")  # invitations know labelers by name
    filter_horizontal = ("experiments",)
    date_hierarchy = "created_at"
    actions = ("block", "readmit")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Leave making labelers to invitations."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Labeler]:
        """Count answers on the way."""
        found: QuerySet[models.Labeler] = super().get_queryset(request)
        return found.annotate(answers=Count("labels", filter=~Q(labels__status=models.Label.Status.VOID)))

    @admin.action(description="Block everywhere: stop them, and withdraw all their labels")
    def block(self, request: HttpRequest, chosen: QuerySet[models.Labeler]) -> None:
        """Block them in each experiment that they take part in."""
        by = cast("User", request.user)
        self.act(
            request,
            chosen,
            lambda rows: moderation.block(_everywhere(rows), by),
            "Blocked; labels withdrawn: {}.",
        )

    @admin.action(description="Give them work again everywhere; their checks begin anew")
    def readmit(self, request: HttpRequest, chosen: QuerySet[models.Labeler]) -> None:
        """Unblock them in each experiment that they take part in."""
        self.act(
            request,
            chosen,
            lambda rows: moderation.readmit(_everywhere(rows)),
            "Given work again in {} experiments.",
        )

    @admin.display(ordering="answers")
    def answers(self, labeler: Any) -> int:
        """Return the number of answers, with those that were withdrawn."""
        return int(labeler.answers)

    @admin.display(boolean=True, ordering="user__is_active")
    def active(self, labeler: models.Labeler) -> bool:
        """Say whether the account may sign in; that is changed at the user."""
        return labeler.user.is_active


def _everywhere(labelers: QuerySet[models.Labeler]) -> QuerySet[models.Participation]:
    return models.Participation.objects.filter(labeler__in=labelers)


@admin.register(models.Participation)
class ParticipationAdmin(ReadOnly, Audited, ModelAdmin):
    """How labelers do: who is warned, who is stopped, and who is given work again."""

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
        """Return what the labeler is told about its checks."""
        return participation.notice or "good"

    @admin.display(description="worth")
    def worth(self, participation: models.Participation) -> str | None:
        """Return how often the labeler is right, each truth counting alike, as last estimated."""
        matrix = participation.confusion
        if matrix is None:
            return None
        return f"{sum(matrix[truth][truth] for truth in range(len(matrix))) / len(matrix):.0%}"

    @admin.action(permissions=["view"], description="Stop: give them nothing more")
    def stop(self, request: HttpRequest, chosen: QuerySet[models.Participation]) -> None:
        """Stop those that are given work."""
        self.act(request, chosen, moderation.stop, "{} stopped.")

    @admin.action(permissions=["view"], description="Block: stop them, and withdraw all their labels")
    def block(self, request: HttpRequest, chosen: QuerySet[models.Participation]) -> None:
        """Do not believe a word; what the other labels say is decided anew."""
        by = cast("User", request.user)
        self.act(request, chosen, lambda rows: moderation.block(rows, by), "Blocked; labels withdrawn: {}.")

    @admin.action(permissions=["view"], description="Give them work again; their checks begin anew")
    def readmit(self, request: HttpRequest, chosen: QuerySet[models.Participation]) -> None:
        """Forgive failed checks."""
        self.act(request, chosen, moderation.readmit, "{} given work again.")


@admin.register(models.ApiToken)
class ApiTokenAdmin(ModelAdmin):
    """Tokens: made here, shown once, replaced, revoked by deleting them."""

    list_display = ("name", "user", "experiment", "created_at", "expires_at", "last_used_at")
    list_filter = ("user",)
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "experiment")
    fields = ("user", "name", "experiment", "expires_at")
    actions = ("rotate",)

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no: a token that somebody uses does not change hands."""
        return False

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Propose that it expires."""
        return {"expires_at": timezone.now() + timedelta(days=accounts.TOKEN_DAYS)}

    def formfield_for_foreignkey(
        self, db_field: "ForeignKey[Any, Any]", request: HttpRequest, **options: Any
    ) -> "ModelChoiceField[Any] | None":
        """Offer those who may use the API."""
        return super().formfield_for_foreignkey(
            db_field, request, **options, queryset=User.objects.filter(is_staff=True, is_active=True)
        )

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Draw the token; only its digest is stored."""
        obj.secret = accounts.issue_token(obj)

    @admin.action(permissions=["delete"], description="Replace the token by a new one")
    def rotate(self, request: HttpRequest, chosen: QuerySet[models.ApiToken]) -> HttpResponse | None:
        """Draw one token anew and show it; the old one is good for nothing at once."""
        if len(chosen) != 1:
            self.message_user(request, "Choose one token: each is shown once.", messages.ERROR)
            return None
        token = chosen.get()
        secret = accounts.rotate_token(token)
        self.log_change(request, token, "Replaced by a new one.")
        return self._shown(request, token, secret)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the token; it is kept nowhere, so this page cannot be asked for again."""
        return self._shown(request, obj, obj.secret)

    def _shown(self, request: HttpRequest, token: models.ApiToken, secret: str) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "New token",
            "token": token,
            "secret": secret,
        }
        return TemplateResponse(request, "admin/feedback/apitoken/created.html", context)


@admin.register(models.Attempts)
class AttemptsAdmin(ReadOnly, ModelAdmin):
    """Passwords and tokens that were tried: deleting a row lets somebody try again at once."""

    list_display = ("digest", "count", "ends_at")
    search_fields = ("=digest",)
    date_hierarchy = "ends_at"

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say yes to who may."""
        return ModelAdmin.has_delete_permission(self, request, obj)

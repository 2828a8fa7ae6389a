"""Django admin: pause and resume experiments, make tokens, and look at everything that was ever answered.

What labelers did is evidence: it can be read here, not changed.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Count, Field, ForeignKey, Q, QuerySet
from django.forms import Field as FormField
from django.forms import ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from human_feedback_site.feedback import crowd, models
from human_feedback_site.feedback.agreement import Rate
from human_feedback_site.feedback.media import media_store
from human_feedback_site.feedback.selectors import notice_for, with_decisions
from human_feedback_site.feedback.services import accounts, aggregate, experiments, quality

if TYPE_CHECKING:  # they are generic for type checkers alone
    ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
    TabularInline: TypeAlias = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline

_OVERLAP = {"overlap", "overlap_more", "overlap_share"}

admin.site.site_header = admin.site.site_title = "RL-Teacher"


def _quality_row(quality: crowd.LabelerQuality) -> tuple[object, ...]:
    low, high = quality.left.interval
    return (
        *(quality.name, quality.answers),
        *(_percent(quality.gold), _percent(quality.consensus)),
        f"{_percent(quality.left)} ({low:.0%} to {high:.0%})",
        _percent(quality.consistency),
        "" if quality.seconds is None else f"{quality.seconds:.1f}",
        quality.notice or "",
    )


def _percent(rate: Rate) -> str:
    return "" if rate.value is None else f"{rate.value:.0%} of {rate.total}"


class ReadOnly:
    """Nothing is added, changed or deleted here."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no."""
        return False


@admin.register(models.Experiment)
class ExperimentAdmin(ModelAdmin):
    """Experiments come from trainers; here they are paused, resumed, finished, and given their overlap.

    A form that was open for a while writes only what was changed in it: the run may have written meanwhile.
    """

    list_display = (
        *("name", "state", "away_since", "owner", "env_id", "answered", "asked", "overlap"),
        *("created_at", "finished_at", "page"),
    )
    list_filter = ("state", "has_true_reward", "owner")
    list_select_related = ("owner",)
    search_fields = ("name", "env_id", "prompt", "owner__username")
    date_hierarchy = "created_at"
    fields = (
        ("name", "state"),
        "prompt",
        ("overlap", "overlap_more", "overlap_share", "aggregation"),
        ("gold_rate", "repeat_rate", "min_watch_ms", "warn_failures", "stop_failures"),
        ("env_id", "fps", "has_true_reward"),
        ("n_labels", "waiting_for"),
        ("owner", "run_id"),
        ("created_at", "trainer_seen_at", "away_since"),
        "alpha",
        "crowd",
        ("finished_at", "media_deleted_at"),
    )
    readonly_fields = (
        *("name", "state", "env_id", "fps", "has_true_reward", "n_labels"),
        *("waiting_for", "owner", "run_id", "created_at"),
        *("trainer_seen_at", "away_since", "finished_at", "media_deleted_at", "alpha", "crowd"),
    )
    actions = ("pause", "resume", "finish", "weigh")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Leave making experiments to trainers."""
        return False

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **options: Any
    ) -> "FormField | None":
        """Let the form remember what it showed, so that a change is one that was made in it."""
        return super().formfield_for_dbfield(db_field, request, show_hidden_initial=True, **options)

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Write the changed fields alone; another overlap closes and opens comparisons."""
        changed = set(form.changed_data)
        weighed = models.Experiment.objects.get(pk=obj.pk).weighs_labelers
        obj.save(update_fields=changed - _OVERLAP)
        if changed & _OVERLAP:
            experiments.set_overlap(obj, obj.overlap, obj.overlap_more, obj.overlap_share)
        if obj.weighs_labelers != weighed:
            aggregate.revise_everything(obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Experiment]:
        """Count comparisons and find absent trainers on the way."""
        wanted = ~Q(comparisons__status=models.Comparison.Status.CANCELLED)
        found: QuerySet[models.Experiment] = super().get_queryset(request)
        return found.annotate(
            asked=Count("comparisons", filter=wanted),
            answered=Count("comparisons", filter=Q(comparisons__n_labels__gt=0)),
            away=experiments.trainer_away_since(),
        )

    @admin.display(description="trainer away since", ordering="away")
    def away_since(self, experiment: Any) -> datetime | None:
        """Return when the trainer was last heard from, if that is a while ago."""
        since: datetime | None = experiment.away
        return since

    @admin.display(ordering="asked")
    def asked(self, experiment: Any) -> int:
        """Return the number of comparisons, without cancelled ones."""
        return int(experiment.asked)

    @admin.display(ordering="answered")
    def answered(self, experiment: Any) -> int:
        """Return the number of comparisons that have a label."""
        return int(experiment.answered)

    @admin.display(description="agreement (Krippendorff's alpha)")
    def alpha(self, experiment: models.Experiment) -> str | None:
        """Return how far labelers agree."""
        alpha = crowd.alpha(experiment)
        return None if alpha is None else f"{alpha:.2f}"

    @admin.display(description="labelers")
    def crowd(self, experiment: models.Experiment) -> SafeString:
        """Return a table of how each labeler does."""
        heads = ("labeler", "answers", "gold", "consensus", "left", "repeats", "seconds", "notice")
        return format_html(
            "<table><tr>{}</tr>{}</table>",
            format_html_join("", "<th>{}</th>", ((head,) for head in heads)),
            format_html_join(
                "",
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                map(_quality_row, crowd.labelers(experiment)),
            ),
        )

    @admin.display(description="page")
    def page(self, experiment: models.Experiment) -> SafeString:
        """Link to the experiment's page."""
        return format_html('<a href="{}">progress</a>', reverse("experiment", args=[experiment.name]))

    @admin.action(description="Pause: labelers are given nothing, training stops")
    def pause(self, request: HttpRequest, chosen: QuerySet[models.Experiment]) -> None:
        """Pause those that run."""
        count = experiments.pause(chosen)
        self.message_user(request, f"{count} paused.")

    @admin.action(description="Resume")
    def resume(self, request: HttpRequest, chosen: QuerySet[models.Experiment]) -> None:
        """Let paused ones go on."""
        count = experiments.resume(chosen)
        self.message_user(request, f"{count} resumed.")

    @admin.action(description="Finish: no more answers are wanted")
    def finish(self, request: HttpRequest, chosen: QuerySet[models.Experiment]) -> None:
        """End those that run or are paused."""
        count = experiments.finish(chosen)
        self.message_user(request, f"{count} finished.")

    @admin.action(description="Weigh labelers now and revise what that changes")
    def weigh(self, request: HttpRequest, chosen: QuerySet[models.Experiment]) -> None:
        """Do at once what is done every minute."""
        revised = sum(aggregate.weigh_labelers(each) for each in chosen if each.weighs_labelers)
        self.message_user(request, f"{revised} decisions revised.")


@admin.register(models.Participation)
class ParticipationAdmin(ReadOnly, ModelAdmin):
    """How labelers do: who is warned, who is stopped, and who is given work again."""

    list_display = (
        *("labeler", "experiment", "standing", "answers", "undone"),
        *("gold_checks", "watch_checks", "worth", "stopped_at"),
    )
    list_filter = (("stopped_at", admin.EmptyFieldListFilter), "experiment")
    list_select_related = ("labeler", "experiment")
    search_fields = ("labeler__name", "experiment__name")
    actions = ("stop", "readmit")

    @admin.display(description="standing")
    def standing(self, participation: models.Participation) -> str:
        """Return what the labeler is told about its checks."""
        return notice_for(participation) or "good"

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
        self.message_user(request, f"{quality.stop(chosen)} stopped.")

    @admin.action(permissions=["view"], description="Give them work again; their checks begin anew")
    def readmit(self, request: HttpRequest, chosen: QuerySet[models.Participation]) -> None:
        """Forgive failed checks."""
        self.message_user(request, f"{quality.readmit(chosen)} given work again.")


class LabelInline(ReadOnly, TabularInline):
    """Every answer ever given to a comparison."""

    model = models.Label
    fields = (
        *("labeler", "choice", "swapped", "verdict", "status"),
        *("response_ms", "shown_ms", "created_at", "undone"),
    )
    readonly_fields = ("verdict", "created_at", "undone")
    extra = 0

    @admin.display(boolean=True)
    def undone(self, label: models.Label) -> bool:
        """Say whether it was withdrawn."""
        return hasattr(label, "undo")


class DecisionInline(ReadOnly, TabularInline):
    """How the outcome changed."""

    model = models.Decision
    fields = ("seq", "decision", "probability", "n_labels", "created_at")
    readonly_fields = ("created_at",)
    ordering = ("seq",)
    extra = 0


@admin.register(models.Comparison)
class ComparisonAdmin(ReadOnly, ModelAdmin):
    """Comparisons, with their clips and answers."""

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
    list_filter = ("status", "phase", "experiment")
    list_select_related = ("experiment",)
    search_fields = ("=uuid", "experiment__name")
    actions = ("first_is_known", "second_is_known", "equal_is_known", "is_not_known")
    fields = (
        ("uuid", "experiment", "created_at"),
        ("phase", "step", "priority"),
        ("status", "n_labels", "wanted", "outcome", "gold"),
        ("first_clip", "second_clip"),
        ("first_return", "second_return"),
        ("first_key", "second_key"),
    )
    readonly_fields = ("created_at", "outcome", "first_clip", "second_clip")
    inlines = (LabelInline, DecisionInline)
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Comparison]:
        """Find the current decisions on the way."""
        return with_decisions(super().get_queryset(request))

    @admin.action(permissions=["view"], description="Gold: it is known that the first is better")
    def first_is_known(self, request: HttpRequest, chosen: QuerySet[models.Comparison]) -> None:
        """Make them gold."""
        self._make_gold(request, chosen, models.Outcome.FIRST)

    @admin.action(permissions=["view"], description="Gold: it is known that the second is better")
    def second_is_known(self, request: HttpRequest, chosen: QuerySet[models.Comparison]) -> None:
        """Make them gold."""
        self._make_gold(request, chosen, models.Outcome.SECOND)

    @admin.action(permissions=["view"], description="Gold: it is known that they are equal")
    def equal_is_known(self, request: HttpRequest, chosen: QuerySet[models.Comparison]) -> None:
        """Make them gold."""
        self._make_gold(request, chosen, models.Outcome.EQUAL)

    def _make_gold(
        self, request: HttpRequest, chosen: QuerySet[models.Comparison], answer: models.Outcome
    ) -> None:
        self.message_user(request, f"{quality.make_gold(chosen, answer)} are gold.")

    @admin.action(permissions=["view"], description="Not gold any more: judge them like others")
    def is_not_known(self, request: HttpRequest, chosen: QuerySet[models.Comparison]) -> None:
        """Take the known answer back."""
        self.message_user(request, f"{quality.make_ordinary(chosen)} are gold no more.")

    @admin.display(ordering="decision")
    def outcome(self, comparison: Any) -> str | None:
        """Return the current decision."""
        return comparison.decision or None

    @admin.display(description="first")
    def first_clip(self, comparison: models.Comparison) -> SafeString:
        """Return a player of the first clip."""
        return _player(comparison, comparison.first_key)

    @admin.display(description="second")
    def second_clip(self, comparison: models.Comparison) -> SafeString:
        """Return a player of the second clip."""
        return _player(comparison, comparison.second_key)


def _player(comparison: models.Comparison, key: str) -> SafeString:
    if comparison.clips_deleted:
        return format_html("<em>{}</em>", "clip expired")
    return format_html('<video src="{}" width="256" controls muted loop></video>', media_store().url(key))


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


@admin.register(models.SequenceCounter)
class SequenceCounterAdmin(ReadOnly, ModelAdmin):
    """How far the feed of each experiment is."""

    list_display = ("experiment", "last_seq")
    list_select_related = ("experiment",)
    search_fields = ("experiment__name",)


@admin.register(models.TrainingPoint)
class TrainingPointAdmin(ReadOnly, ModelAdmin):
    """Learning curves."""

    list_display = ("experiment", "tag", "step", "value")
    list_filter = ("experiment", "tag")
    list_select_related = ("experiment",)
    search_fields = ("tag", "experiment__name")


@admin.register(models.Example)
class ExampleAdmin(ModelAdmin):
    """Pairs that explain the instruction, taken from comparisons that have their clips."""

    list_display = ("experiment", "better", "explanation", "practice", "comparison")
    list_filter = ("practice", "experiment")
    list_select_related = ("experiment", "comparison")
    search_fields = ("experiment__name", "explanation")
    autocomplete_fields = ("experiment",)
    raw_id_fields = ("comparison",)


@admin.register(models.Episode)
class EpisodeAdmin(ReadOnly, ModelAdmin):
    """Films of whole episodes."""

    list_display = ("experiment", "step", "key", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment",)
    search_fields = ("experiment__name",)


@admin.register(models.Labeler)
class LabelerAdmin(ModelAdmin):
    """Labelers come from invitations; here they are given other experiments, or taken out of them."""

    list_display = ("name", "user", "invited_by", "active", "answers", "created_at")
    list_filter = ("experiments", "invited_by")
    list_select_related = ("user", "invited_by")
    search_fields = ("name", "user__username")
    fields = ("name", "experiments", "user", "invited_by", "created_at")
    readonly_fields = ("name", "user", "invited_by", "created_at")  # invitations know labelers by name
    filter_horizontal = ("experiments",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Leave making labelers to invitations."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Labeler]:
        """Count answers on the way."""
        found: QuerySet[models.Labeler] = super().get_queryset(request)
        return found.annotate(answers=Count("labels"))

    @admin.display(ordering="answers")
    def answers(self, labeler: Any) -> int:
        """Return the number of answers, with those that were withdrawn."""
        return int(labeler.answers)

    @admin.display(boolean=True, ordering="user__is_active")
    def active(self, labeler: models.Labeler) -> bool:
        """Say whether the account may sign in; that is changed at the user."""
        return labeler.user.is_active


@admin.register(models.ApiToken)
class ApiTokenAdmin(ModelAdmin):
    """Tokens: made here, shown once, revoked by deleting them."""

    list_display = ("name", "user", "created_at", "last_used_at")
    list_filter = ("user",)
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    fields = ("user", "name")

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no: a token that somebody uses does not change hands."""
        return False

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

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the token; it is kept nowhere, so this page cannot be asked for again."""
        context = {
            **self.admin_site.each_context(request),
            "title": "New token",
            "token": obj,
            "secret": obj.secret,
        }
        return TemplateResponse(request, "admin/feedback/apitoken/created.html", context)

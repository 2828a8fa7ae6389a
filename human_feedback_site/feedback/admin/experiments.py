"""Admin pages for experiments and their prompts, examples, episodes and learning curves."""

import time
from datetime import datetime
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from human_feedback_site.feedback import models
from human_feedback_site.feedback.admin.base import Audited, ModelAdmin, ReadOnly, audited
from human_feedback_site.feedback.errors import MediaStoreError, TrainerAtWorkError
from human_feedback_site.feedback.quality.agreement import Rate
from human_feedback_site.feedback.selectors import crowd
from human_feedback_site.feedback.services import aggregate, deletion, experiments, wording

_DELETE_SECONDS = 15.0  # time limit per request; the periodic maintenance deletes what is left


def _quality_row(quality: crowd.LabelerQuality) -> tuple[object, ...]:
    low, high = quality.side.interval
    return (
        *(quality.name, quality.answers),
        *(_percent(quality.gold), _percent(quality.consensus)),
        f"{_percent(quality.side)} ({low:.0%} to {high:.0%})",
        _percent(quality.consistency),
        "" if quality.seconds is None else f"{quality.seconds:.1f}",
        quality.notice or "",
    )


def _percent(rate: Rate) -> str:
    return "" if rate.value is None else f"{rate.value:.0%} of {rate.total}"


def _weigh(chosen: QuerySet[models.Experiment]) -> int:
    return sum(aggregate.weigh_labelers(each) for each in chosen if each.weighs_labelers)


@admin.register(models.Experiment)
class ExperimentAdmin(Audited, ModelAdmin):
    """Admin page for pausing, resuming, finishing, deleting and configuring experiments."""

    list_display = (
        *("name", "state", "away_since", "owner", "env_id", "answered", "asked", "overlap"),
        *("created_at", "finished_at", "deletion_asked_at", "page"),
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
        ("asks_reasons", "show_episodes"),
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
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or obj.deletion_asked_at is None)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Remove bulk deletion, because each deletion must be confirmed on a page that lists its contents."""
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List what will be deleted with an experiment; once the user confirms, delete it.

        If the deletion takes too long for one request, periodic maintenance finishes it. Django's own
        deletion isn't used, because it runs in one transaction, and a rollback couldn't restore deleted
        clips.
        """
        experiment = self.get_object(request, unquote(object_id))
        if experiment is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[no-any-return, attr-defined]
        if not self.has_delete_permission(request, experiment):
            raise PermissionDenied
        try:
            if request.method == "POST":
                return self._delete(request, experiment)
            deletion.refuse_while_training(experiment)
            context = {"contents": deletion.contents_of(experiment), **(extra_context or {})}
        except (MediaStoreError, TrainerAtWorkError) as error:
            messages.error(request, f"{error} {deletion.state_of(experiment)}")
            return redirect("admin:feedback_experiment_change", experiment.pk)
        return super().delete_view(request, object_id, context)

    def _delete(self, request: HttpRequest, experiment: models.Experiment) -> HttpResponse:
        deletion.ask_for_deletion(experiment)
        self.log_deletions(request, models.Experiment.everything.filter(pk=experiment.pk))
        if deletion.go_on(experiment, time.monotonic() + _DELETE_SECONDS):
            messages.success(request, f"The experiment {experiment} was deleted.")
        else:
            result = f"The experiment {experiment} is now hidden; the rest will be deleted within minutes."
            messages.success(request, result)
        return redirect("admin:feedback_experiment_changelist")

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[Any, Any], set[Any], list[Any]]:
        """Return empty collections: there may be a million related rows, so the page shows only counts."""
        return [], {}, set(), []

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Save only the changed fields, as the experiment's own page does."""
        changed = set(form.changed_data)
        if "prompt" in changed:
            wording.edit_prompt(obj, obj.prompt, cast(User, request.user), seen=obj.prompt_version)
        experiments.change_settings(obj, changed - {"prompt"})

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Experiment]:
        wanted = ~Q(comparisons__status=models.Comparison.Status.CANCELLED)
        return models.Experiment.everything.annotate(
            asked=Count("comparisons", filter=wanted),
            answered=Count("comparisons", filter=Q(comparisons__n_labels__gt=0)),
            away=experiments.trainer_away_since(),
        )

    @admin.display(description="trainer away since", ordering="away")
    def away_since(self, experiment: Any) -> datetime | None:
        """Return when the trainer last sent a request if it has gone silent, otherwise None."""
        since: datetime | None = experiment.away
        return since

    @admin.display(ordering="asked")
    def asked(self, experiment: Any) -> int:
        return int(experiment.asked)

    @admin.display(ordering="answered")
    def answered(self, experiment: Any) -> int:
        return int(experiment.answered)

    @admin.display(description="agreement (Krippendorff's alpha)")
    def alpha(self, experiment: models.Experiment) -> str | None:
        """Return Krippendorff's alpha as text, such as ``0.71 over 40 questions``; None if undefined."""
        found = crowd.agreement(experiment)
        return (
            None
            if found.alpha is None
            else f"{found.alpha:.2f} over {found.questions} question{pluralize(found.questions)}"
        )

    @admin.display(description="labelers")
    def crowd(self, experiment: models.Experiment) -> SafeString:
        """Return an HTML table with each labeler's quality statistics."""
        heads = (
            *("labeler", "answers", "attention checks", "consensus", "left", "repeats"),
            *("seconds per answer", "notice"),
        )
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
        if experiment.deletion_asked_at is not None:
            return SafeString("")
        return format_html('<a href="{}">progress</a>', reverse("experiment", args=[experiment.name]))

    pause = audited(
        experiments.pause,
        "{} paused.",
        "Pause: give labelers no questions and stop training",
        permissions=None,
    )
    resume = audited(experiments.resume, "{} resumed.", "Resume", permissions=None)
    finish = audited(experiments.finish, "{} finished.", "Finish: request no more labels", permissions=None)
    weigh = audited(
        _weigh,
        "{} decisions revised.",
        "Estimate labeler reliability now and update decisions",
        permissions=None,
    )


@admin.register(models.PromptVersion)
class PromptVersionAdmin(ReadOnly, ModelAdmin):
    """All versions of each experiment's prompt, with their authors and creation times."""

    list_display = ("experiment", "version", "text", "author", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment", "author")
    search_fields = ("experiment__name", "text")


@admin.register(models.SequenceCounter)
class SequenceCounterAdmin(ReadOnly, ModelAdmin):
    """Sequence number of each experiment's latest decision."""

    list_display = ("experiment", "last_seq")
    list_select_related = ("experiment",)
    search_fields = ("experiment__name",)


@admin.register(models.TrainingPoint)
class TrainingPointAdmin(ReadOnly, ModelAdmin):
    """Learning-curve points reported by trainers."""

    list_display = ("experiment", "tag", "step", "value")
    list_filter = ("experiment", "tag")
    list_select_related = ("experiment",)
    search_fields = ("tag", "experiment__name")


@admin.register(models.PredictedRewards)
class PredictedRewardsAdmin(ReadOnly, ModelAdmin):
    """Rewards that the reward predictor predicts for comparisons' clips."""

    list_display = ("comparison", "step")
    list_filter = ("comparison__experiment",)
    list_select_related = ("comparison",)
    search_fields = ("comparison__experiment__name",)


@admin.register(models.Example)
class ExampleAdmin(ModelAdmin):
    """Examples and practice questions that explain the prompt to labelers."""

    list_display = ("experiment", "better", "explanation", "practice", "comparison")
    list_filter = ("practice", "experiment")
    list_select_related = ("experiment", "comparison")
    search_fields = ("experiment__name", "explanation")
    autocomplete_fields = ("experiment",)
    raw_id_fields = ("comparison",)


@admin.register(models.Episode)
class EpisodeAdmin(ReadOnly, ModelAdmin):
    """Videos of full episodes, recorded during training."""

    list_display = ("experiment", "step", "answered", "key", "created_at")
    list_filter = ("experiment",)
    list_select_related = ("experiment",)
    search_fields = ("experiment__name",)

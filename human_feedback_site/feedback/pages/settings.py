"""Page with an experiment's settings: prompt, overlap, checks, videos, consent text and examples."""

from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.forms import SeenForm
from human_feedback_site.feedback.models import MAX_PROMPT, Experiment
from human_feedback_site.feedback.pages.views import acts, first_error, managed, message, signed_in
from human_feedback_site.feedback.services import experiments, wording


class SettingsForm(SeenForm):
    """Form for the settings whose values the model validates, here and in the admin."""

    class Meta:
        model = Experiment
        fields = (
            *("overlap", "overlap_share", "overlap_more", "aggregation", "gold_rate", "repeat_rate"),
            *("min_watch_ms", "warn_failures", "stop_failures", "asks_reasons", "show_episodes"),
        )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            field.show_hidden_initial = True


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
@transaction.atomic
def settings(request: HttpRequest, name: str) -> HttpResponse:
    """Show an experiment's settings, and save them."""
    experiment = managed(request, name)
    form = SettingsForm(request.POST if request.method == "POST" else None, instance=experiment)
    if form.is_valid():
        experiments.change_settings(experiment, form.changed_data)
        return redirect(f"{reverse('settings', args=[name])}?saved=1")
    context = {
        "experiment": experiment,
        "form": form,
        "saved": "saved" in request.GET and not form.is_bound,
        "max_prompt": MAX_PROMPT,
        "prompts": experiment.prompts.select_related("author"),
        "agreed": experiment.participations.filter(consented_to=experiment.consent_id).count(),
        "examples": experiment.examples.select_related("comparison"),
    }
    return render(request, "pages/settings.html", context, status=400 if form.is_bound else 200)


class PromptForm(forms.Form):
    """Form for editing the prompt."""

    prompt = forms.CharField(
        max_length=MAX_PROMPT,
        error_messages={
            "required": _("The prompt must not be empty."),
            "max_length": _("The prompt must not be longer than %(limit_value)d characters."),
        },
    )
    version = forms.IntegerField(
        error_messages=dict.fromkeys(("required", "invalid"), _("Go back and reload the page."))
    )


@acts
def edit_prompt(request: HttpRequest, name: str) -> HttpResponse:
    """Change an experiment's prompt; labelers see the new prompt with their next question."""
    experiment = managed(request, name)
    form = PromptForm(request.POST)
    if not form.is_valid():
        return message(request, 400, _("The prompt can’t be saved"), first_error(form))
    text = " ".join(form.cleaned_data["prompt"].split())
    try:
        wording.edit_prompt(experiment, text, signed_in(request), seen=form.cleaned_data["version"])
    except ConflictError:
        heading, advice = _("Someone else changed the prompt"), _("Go back and reload the page.")
        return message(request, 409, heading, advice)
    return redirect("settings", name)


@acts
def edit_consent(request: HttpRequest, name: str) -> HttpResponse:
    """Replace an experiment's consent text, or remove it if the new text is empty."""
    experiment = managed(request, name)
    text = request.POST.get("text", "")
    if len(text) > wording.MAX_CONSENT or "\x00" in text:
        return message(
            request, 400, _("The consent text can’t be saved"), _("Use at most 20,000 characters.")
        )
    try:
        wording.set_text(experiment, text, seen=request.POST.get("version"))
    except ConflictError:
        heading, advice = _("Someone else changed the consent text"), _("Go back and reload the page.")
        return message(request, 409, heading, advice)
    return redirect("settings", name)

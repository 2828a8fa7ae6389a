"""Views that pause, resume, finish or reopen an experiment, or change its prompt."""

from collections.abc import Callable, Mapping

from django import forms
from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import MAX_PROMPT, Experiment
from human_feedback_site.feedback.pages.views import first_error, managed, message, signed_in
from human_feedback_site.feedback.selectors.experiments import progress_of
from human_feedback_site.feedback.services import experiments, prompts

STEPS: Mapping[str, Callable[[QuerySet[Experiment]], int]] = {
    "pause": experiments.pause,
    "resume": experiments.resume,
    "reopen": experiments.reopen,
}


@require_POST
@login_required
@never_cache
def steer(request: HttpRequest, name: str, step: str) -> HttpResponse:
    """Pause, resume or reopen an experiment; ``step`` is a key of :data:`STEPS`. Idempotent."""
    STEPS[step](_only(request, name))
    return redirect("experiment", name)


@require_http_methods(["GET", "POST"])
@login_required
@never_cache
def finish(request: HttpRequest, name: str) -> HttpResponse:
    """Show a confirmation page on GET; finish the experiment on POST."""
    chosen = _only(request, name)
    if request.method == "POST":
        experiments.finish(chosen)
        return redirect("experiment", name)
    experiment = chosen.get()
    context = {"experiment": experiment, "progress": progress_of(experiment)}
    return render(request, "pages/finish.html", context)


class PromptForm(forms.Form):
    """Form for editing the prompt.

    ``version`` is the version number that the edit is based on, to detect conflicting edits.
    """

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


@require_POST
@login_required
@never_cache
def edit_prompt(request: HttpRequest, name: str) -> HttpResponse:
    """Change an experiment's prompt; labelers see the new prompt with their next pair."""
    experiment = _only(request, name).get()
    form = PromptForm(request.POST)
    if not form.is_valid():
        return message(request, 400, _("The prompt can’t be saved"), first_error(form))
    text = " ".join(form.cleaned_data["prompt"].split())
    try:
        prompts.edit_prompt(experiment, text, signed_in(request), seen=form.cleaned_data["version"])
    except ConflictError:
        heading, advice = _("Someone else changed the prompt"), _("Go back and reload the page.")
        return message(request, 409, heading, advice)
    return redirect("experiment", name)


def _only(request: HttpRequest, name: str) -> QuerySet[Experiment]:
    """Return a queryset with only this experiment; raise ``Http404`` if the user doesn't manage it."""
    return Experiment.objects.filter(pk=managed(request, name).pk)

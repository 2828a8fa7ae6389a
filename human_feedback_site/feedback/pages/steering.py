"""What a researcher does to an experiment from its page: pause, resume, finish, reopen and reword it."""

from collections.abc import Callable, Mapping

from django import forms
from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import MAX_PROMPT, Experiment
from human_feedback_site.feedback.pages.views import managed, message, signed_in
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
    """Take one of :data:`STEPS`; one that was taken already changes nothing."""
    STEPS[step](_only(request, name))
    return redirect("experiment", name)


@require_http_methods(["GET", "POST"])
@login_required
@never_cache
def finish(request: HttpRequest, name: str) -> HttpResponse:
    """Ask whether to finish an experiment, and do it."""
    chosen = _only(request, name)
    if request.method == "POST":
        experiments.finish(chosen)
        return redirect("experiment", name)
    experiment = chosen.get()
    context = {"experiment": experiment, "progress": progress_of(experiment)}
    return render(request, "pages/finish.html", context)


class PromptForm(forms.Form):
    """Another prompt, and the version of the one that its author had before the eyes."""

    prompt = forms.CharField(max_length=MAX_PROMPT)
    version = forms.IntegerField()


@require_POST
@login_required
@never_cache
def edit_prompt(request: HttpRequest, name: str) -> HttpResponse:
    """Give an experiment another prompt; labelers read it with their next pair."""
    experiment = _only(request, name).get()
    form = PromptForm(request.POST)
    if not form.is_valid():
        return message(request, 400, _("This cannot be a prompt"), _("Write one sentence for the labelers."))
    text = " ".join(form.cleaned_data["prompt"].split())
    try:
        prompts.edit_prompt(experiment, text, signed_in(request), seen=form.cleaned_data["version"])
    except ConflictError:
        heading, text = _("The prompt was changed meanwhile"), _("Go back and load the page again.")
        return message(request, 409, heading, text)
    return redirect("experiment", name)


def _only(request: HttpRequest, name: str) -> QuerySet[Experiment]:
    """Return the one experiment of that name; 404 for who does not manage it."""
    return Experiment.objects.filter(pk=managed(request, name).pk)

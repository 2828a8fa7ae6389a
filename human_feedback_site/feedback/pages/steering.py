"""What a researcher does to an experiment from its page: pause, resume, finish and reopen it."""

from collections.abc import Callable, Mapping

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from human_feedback_site.feedback import selectors
from human_feedback_site.feedback.models import Experiment
from human_feedback_site.feedback.pages.views import signed_in
from human_feedback_site.feedback.services import experiments

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
    context = {"experiment": experiment, "progress": selectors.progress(experiment)}
    return render(request, "pages/finish.html", context)


def _only(request: HttpRequest, name: str) -> QuerySet[Experiment]:
    """Return the one experiment of that name; 404 for who does not manage it."""
    managed = selectors.experiments_to_manage(signed_in(request))
    return managed.filter(pk=get_object_or_404(managed, name=name).pk)

"""Experiment page for researchers, with its live section, and the views that its forms lead to."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from human_feedback_site.feedback.errors import ConflictError, NotFoundError, NotInstalledError
from human_feedback_site.feedback.kinds import answers_of_all
from human_feedback_site.feedback.models import Example, Experiment
from human_feedback_site.feedback.pages.live import live_view_of
from human_feedback_site.feedback.pages.overview import comparison_card, comparisons_to_list
from human_feedback_site.feedback.pages.views import (
    acts,
    first_error,
    managed,
    managed_by,
    message,
    shows,
    signed_in,
)
from human_feedback_site.feedback.selectors.experiments import experiments_to_label, progress_of
from human_feedback_site.feedback.services import experiments, moderation
from human_feedback_site.feedback.tables.columns import TABLES
from human_feedback_site.feedback.tables.files import FILE_TYPES, download

COMPARISONS_PER_PAGE = 20


@shows
def experiment(request: HttpRequest, name: str) -> HttpResponse:
    """Show researchers an experiment's progress and comparisons; redirect labelers to the labeling page."""
    found = _managed(request).filter(name=name).first()
    if found is None:
        get_object_or_404(experiments_to_label(signed_in(request)), name=name)
        return redirect("label", name)
    page = Paginator(comparisons_to_list(found), COMPARISONS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "experiment": found,
        "may_label": _may_label(request, found),
        "live": _live(request, found),
        "page": page,
        "cards": [comparison_card(found, comparison) for comparison in page],
    }
    return render(request, "pages/experiment.html", context)


@shows
def live(request: HttpRequest, name: str) -> HttpResponse:
    """Return the experiment page's live section as an HTML fragment, or a 304 response if unchanged."""
    found = get_object_or_404(_managed(request), name=name)
    shown = _live(request, found)
    unchanged = get_conditional_response(request, etag=shown["etag"])
    if unchanged is not None:
        return unchanged
    context = {"experiment": found, "may_label": _may_label(request, found), "live": shown}
    response = render(request, "pages/live.html", context)
    response.headers["ETag"] = shown["etag"]
    return response


def _live(request: HttpRequest, experiment: Experiment) -> dict[str, Any]:
    return live_view_of(experiment, managed_by(request), request.GET.get("with", ""))


def _managed(request: HttpRequest) -> QuerySet[Experiment]:
    """Return the experiments that the user manages, annotated with ``away_since``."""
    return managed_by(request).annotate(away_since=experiments.trainer_away_since())


def _may_label(request: HttpRequest, experiment: Experiment) -> bool:
    return experiments_to_label(signed_in(request)).filter(pk=experiment.pk).exists()


STEPS: Mapping[str, Callable[[QuerySet[Experiment]], int]] = {
    "pause": experiments.pause,
    "resume": experiments.resume,
    "reopen": experiments.reopen,
}


@acts
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


def _only(request: HttpRequest, name: str) -> QuerySet[Experiment]:
    return Experiment.objects.filter(pk=managed(request, name).pk)


class LessonForm(forms.Form):
    """Form for an example: the correct answer, an explanation, and a checkbox for practice questions."""

    better = forms.ChoiceField(
        choices=[(answer, answer) for answer in answers_of_all()],
        error_messages=dict.fromkeys(("required", "invalid_choice"), _("Choose the correct answer.")),
    )
    explanation = forms.CharField(
        max_length=Example.MAX_EXPLANATION,
        required=False,
        error_messages={
            "max_length": _("The explanation must not be longer than %(limit_value)d characters."),
        },
    )
    practice = forms.BooleanField(required=False)


@acts
def use_as_example(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Use a comparison as an example or practice question, which labelers see, or as an attention check."""
    experiment = managed(request, name)
    form = LessonForm(request.POST)
    if not form.is_valid():
        return message(request, 400, _("This comparison can’t be used as an example"), first_error(form))
    try:
        if "check" in request.POST:
            moderation.use_as_check(experiment, uuid, form.cleaned_data["better"])
        else:
            moderation.use_as_example(experiment, uuid, moderation.NewExample(**form.cleaned_data))
    except NotFoundError as error:
        raise Http404 from error
    except ConflictError:
        text = _("Its clips are gone, it was canceled, it is used otherwise, or it has no such answer.")
        return message(request, 409, _("This comparison can’t be used as an example"), text)
    return _back_to_card(request, name, uuid)


@acts
def remove_example(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Stop using a comparison as an example or attention check."""
    experiment = managed(request, name)
    moderation.remove_example(experiment, uuid)
    moderation.make_ordinary(experiment.comparisons.filter(uuid=uuid))
    return _back_to_card(request, name, uuid)


def _back_to_card(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    if "from" in request.POST:
        return redirect(f"{reverse('settings', args=[name])}#examples")
    page = urlencode({"page": request.POST.get("page", "1")})
    return redirect(f"{reverse('experiment', args=[name])}?{page}#comparison-{uuid}")


@shows
def export(request: HttpRequest, name: str, table: str, extension: str) -> HttpResponseBase:
    """Return one of an experiment's tables as a file download; the user must manage the experiment."""
    if table not in TABLES or extension not in FILE_TYPES:
        raise Http404
    experiment = managed(request, name)
    try:
        return download(experiment, table, extension)
    except NotInstalledError as error:
        return message(request, 501, _("This site can’t write Parquet files"), str(error))

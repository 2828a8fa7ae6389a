"""Experiment page for researchers, and its live section, which refreshes automatically."""

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.cache import get_conditional_response
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.models import MAX_PROMPT, Experiment
from human_feedback_site.feedback.pages.live import live_view_of
from human_feedback_site.feedback.pages.overview import VERDICTS, comparison_card, comparisons_to_list
from human_feedback_site.feedback.pages.views import managed_by, signed_in
from human_feedback_site.feedback.selectors.experiments import experiments_to_label
from human_feedback_site.feedback.services.experiments import trainer_away_since

COMPARISONS_PER_PAGE = 20


@require_safe
@login_required
@never_cache
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
        "live": live_view_of(found),
        "max_prompt": MAX_PROMPT,
        "prompts": found.prompts.select_related("author"),
        "verdicts": VERDICTS,
        "page": page,
        "cards": [comparison_card(found, comparison) for comparison in page],
    }
    return render(request, "pages/experiment.html", context)


@require_safe
@login_required
@never_cache
def live(request: HttpRequest, name: str) -> HttpResponse:
    """Return the experiment page's live section as an HTML fragment, or a 304 response if unchanged."""
    found = get_object_or_404(_managed(request), name=name)
    shown = live_view_of(found)
    unchanged = get_conditional_response(request, etag=shown.etag)
    if unchanged is not None:
        return unchanged
    context = {"experiment": found, "may_label": _may_label(request, found), "live": shown}
    response = render(request, "pages/live.html", context)
    response.headers["ETag"] = shown.etag
    return response


def _managed(request: HttpRequest) -> QuerySet[Experiment]:
    """Return the experiments that the user manages, annotated with ``away_since``.

    ``away_since`` is the time of the trainer's last request if the trainer appears to be offline, else None.
    """
    return managed_by(request).annotate(away_since=trainer_away_since())


def _may_label(request: HttpRequest, experiment: Experiment) -> bool:
    return experiments_to_label(signed_in(request)).filter(pk=experiment.pk).exists()

"""Views to block a labeler and withdraw their labels, or to readmit them."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from human_feedback_site.feedback.models import Participation
from human_feedback_site.feedback.pages.views import managed, signed_in
from human_feedback_site.feedback.selectors import monitoring
from human_feedback_site.feedback.services import moderation


@require_safe
@login_required
@never_cache
def labeler(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Show the confirmation page for blocking or readmitting a labeler of an experiment."""
    context = {"participation": _chosen(request, name, number)}
    return render(request, "pages/labeler.html", context)


@require_POST
@login_required
@never_cache
def block(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Stop a labeler and withdraw all their labels in this experiment. Idempotent."""
    chosen = _chosen(request, name, number)
    moderation.block(Participation.objects.filter(pk=chosen.pk), signed_in(request))
    return _done(chosen)


@require_POST
@login_required
@never_cache
def readmit(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Let a stopped labeler continue; labels withdrawn earlier stay withdrawn."""
    chosen = _chosen(request, name, number)
    moderation.readmit(Participation.objects.filter(pk=chosen.pk))
    return _done(chosen)


def _chosen(request: HttpRequest, name: str, number: int) -> Participation:
    taking_part = managed(request, name).participations.select_related("labeler", "experiment")
    return get_object_or_404(taking_part, labeler=number)


def _done(chosen: Participation) -> HttpResponse:
    monitoring.forget_crowd(chosen.experiment)
    return redirect(f"{reverse('experiment', args=[chosen.experiment.name])}#labelers")

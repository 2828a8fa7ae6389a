"""The page on which a labeler ends, with the code for the platform it came from."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.unsaved import sender_data
from human_feedback_site.feedback.services import accounts, completion


@require_safe
@login_required
@never_cache
def done(request: HttpRequest, name: str) -> HttpResponse:
    """Thank a labeler who has done its part; tell any other what is still to do."""
    labeler, experiment = labeler_in(request, name)
    ending = completion.conclude(accounts.participation_of(labeler, experiment))
    context = {"experiment": experiment, "ending": ending, "unsaved": sender_data(labeler.user)}
    return render(request, "pages/done.html", context)

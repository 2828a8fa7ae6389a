"""Page shown to labelers when they finish, with a completion code for the recruitment platform."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.unsaved import sender_data
from human_feedback_site.feedback.selectors.before_after import before_after
from human_feedback_site.feedback.services import accounts, completion


@require_safe
@login_required
@never_cache
def done(request: HttpRequest, name: str) -> HttpResponse:
    """Show the labeler's status (done, screened out or not done yet) and any code for the platform.

    Below it are videos of the agent before training and now.
    """
    labeler, experiment = labeler_in(request, name)
    ending = completion.conclude(accounts.participation_of(labeler, experiment))
    context = {
        "experiment": experiment,
        "ending": ending,
        "change": before_after(labeler.user, [experiment]).get(experiment.pk),
        "unsaved": sender_data(labeler.user),
    }
    return render(request, "pages/done.html", context)

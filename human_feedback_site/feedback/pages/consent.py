"""Consent pages: labelers agree or decline, and researchers edit the text."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.views import managed, message
from human_feedback_site.feedback.services import consent as service


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
def consent(request: HttpRequest, name: str) -> HttpResponse:
    """Show a labeler the consent text and record whether they agree.

    If the text has changed since the labeler saw it, show the new text and record nothing.
    """
    labeler, experiment = labeler_in(request, name)
    text = service.text_to_answer(labeler, experiment)
    if text is None:
        return redirect("label", name)
    answer = request.POST.get("answer")
    if answer in {"yes", "no"} and request.POST.get("version") == text.digest:
        service.answer(labeler, text, agreed=answer == "yes")
        if answer == "yes":
            return redirect("label", name)
        return render(request, "pages/goodbye.html", {"experiment": experiment})
    return render(request, "pages/consent.html", {"experiment": experiment, "text": text})


@require_POST
@login_required
@never_cache
def edit(request: HttpRequest, name: str) -> HttpResponse:
    """Replace an experiment's consent text, or remove it if the new text is empty."""
    experiment = managed(request, name)
    text = request.POST.get("text", "")
    if len(text) > service.MAX_CONSENT or "\x00" in text:
        return message(
            request, 400, _("The consent text can’t be saved"), _("Use at most 20,000 characters.")
        )
    try:
        service.set_text(experiment, text, seen=request.POST.get("version"))
    except ConflictError:
        heading, advice = _("Someone else changed the consent text"), _("Go back and reload the page.")
        return message(request, 409, heading, advice)
    return redirect("invites", name)

"""Whom a researcher lets in: invitations, and those who came from a platform."""

from dataclasses import dataclass

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from human_feedback_site.feedback.addresses import base_url
from human_feedback_site.feedback.models import Arrival, Invite
from human_feedback_site.feedback.pages.invite_forms import AnonymousForm, NamedForm
from human_feedback_site.feedback.pages.views import managed
from human_feedback_site.feedback.services import completion
from human_feedback_site.feedback.services import invites as invitations

INVITES_PER_PAGE = 20
PARTICIPANTS_PER_PAGE = 50
FORMS = {Invite.Kind.NAMED: NamedForm, Invite.Kind.ANONYMOUS: AnonymousForm}
_PARTS = {
    completion.Part.GOING_ON: _("going on"),
    completion.Part.COMPLETE: _("complete"),
    completion.Part.SCREENED_OUT: _("stopped by checks"),
}
_BADGES = {completion.Part.COMPLETE: " running", completion.Part.SCREENED_OUT: " paused"}


@dataclass(frozen=True)
class InviteRow:
    """An invitation in the list; ``link`` is empty where it lets nobody in any more."""

    invite: Invite
    link: str
    state: Promise


@dataclass(frozen=True)
class Came:
    """A participant in the list."""

    arrival: Arrival
    answered: int
    part: Promise
    badge: str  # its class


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
def invites(request: HttpRequest, name: str) -> HttpResponse:
    """List the invitations of an experiment that the reader manages, and make new ones."""
    experiment = managed(request, name)
    kind = request.POST.get("kind")
    forms = {each.value: form(request.POST if each == kind else None) for each, form in FORMS.items()}
    chosen = forms.get(kind or "")
    if chosen is not None and chosen.is_valid():
        made = chosen.save_for(experiment)
        return redirect(f"{reverse('invites', args=[name])}#invite-{made.pk}")
    found = experiment.invites.select_related("labeler")
    page = Paginator(found, INVITES_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "experiment": experiment,
        "page": page,
        "rows": [_row(invite, base_url(request)) for invite in page],
        "named": forms["named"],
        "anonymous": forms["anonymous"],
        "agreed": experiment.participations.filter(consented_to=experiment.consent_id).count(),
        "from_platform": experiment.arrivals.exists(),
    }
    return render(request, "pages/invites.html", context, status=400 if request.method == "POST" else 200)


def _row(invite: Invite, base: str) -> InviteRow:
    if invite.revoked_at is not None:
        return InviteRow(invite, "", _("revoked"))
    if invite.expires_at <= timezone.now():
        return InviteRow(invite, "", _("expired"))
    if invite.limit is not None and invite.uses >= invite.limit:
        return InviteRow(invite, "", _("used up"))
    return InviteRow(invite, invitations.link_of(invite, base), _("open"))


@require_POST
@login_required
@never_cache
def revoke(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Let nobody in by a link any more."""
    experiment = managed(request, name)
    invite = get_object_or_404(experiment.invites, pk=number)
    invitations.revoke(experiment.invites.filter(pk=invite.pk))
    return redirect(f"{reverse('invites', args=[name])}#invite-{number}")


@require_safe
@login_required
@never_cache
def participants(request: HttpRequest, name: str) -> HttpResponse:
    """List who came from a platform, so that they can be paid there: here alone their numbers are shown."""
    experiment = managed(request, name)
    page = Paginator(experiment.arrivals.select_related("labeler"), PARTICIPANTS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    rows = [
        Came(arrival, answered, _PARTS[part], _BADGES.get(part, ""))
        for arrival, (answered, part) in zip(page, completion.parts_of(list(page)), strict=True)
    ]
    return render(request, "pages/participants.html", {"experiment": experiment, "page": page, "rows": rows})


@require_POST
@login_required
@never_cache
def forget(request: HttpRequest, name: str) -> HttpResponse:
    """Delete the platform's number of one participant, or those of all; their labels stay."""
    experiment = managed(request, name)
    chosen = experiment.arrivals.all()
    if "all" not in request.POST:
        chosen = chosen.filter(participant=request.POST.get("participant", "").replace("\0", ""))
    invitations.forget_participants(chosen)
    return redirect("participants", name)

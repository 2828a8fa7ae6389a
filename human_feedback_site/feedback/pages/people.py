"""Pages for an experiment's invitations and the participants sent by a recruitment platform."""

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
    completion.Part.GOING_ON: _("in progress"),
    completion.Part.COMPLETE: _("complete"),
    completion.Part.SCREENED_OUT: _("screened out"),
}
_BADGES = {completion.Part.COMPLETE: " running", completion.Part.SCREENED_OUT: " paused"}


@dataclass(frozen=True)
class InviteRow:
    """Invitation in the list; ``link`` is empty if the invitation can no longer be used."""

    invite: Invite
    link: str
    state: Promise


@dataclass(frozen=True)
class ParticipantRow:
    """Participant in the list; ``part`` is the progress text, and ``badge`` is the CSS class for it."""

    arrival: Arrival
    answered: int
    part: Promise
    badge: str


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
def invites(request: HttpRequest, name: str) -> HttpResponse:
    """List an experiment's invitations and create new ones."""
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
    return InviteRow(invite, invitations.link_of(invite, base), _("valid"))


@require_POST
@login_required
@never_cache
def revoke(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Revoke an invitation, so that no one else can join with its link."""
    experiment = managed(request, name)
    invite = get_object_or_404(experiment.invites, pk=number)
    invitations.revoke(experiment.invites.filter(pk=invite.pk))
    return redirect(f"{reverse('invites', args=[name])}#invite-{number}")


@require_safe
@login_required
@never_cache
def participants(request: HttpRequest, name: str) -> HttpResponse:
    """List the participants sent by a platform, so that the researcher can pay them on the platform.

    This is the only page that shows their platform IDs.
    """
    experiment = managed(request, name)
    page = Paginator(experiment.arrivals.select_related("labeler"), PARTICIPANTS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    rows = [
        ParticipantRow(arrival, answered, _PARTS[part], _BADGES.get(part, ""))
        for arrival, (answered, part) in zip(page, completion.parts_of(list(page)), strict=True)
    ]
    return render(request, "pages/participants.html", {"experiment": experiment, "page": page, "rows": rows})


@require_POST
@login_required
@never_cache
def forget(request: HttpRequest, name: str) -> HttpResponse:
    """Delete one participant's platform ID, or all participants' IDs; their labels are kept."""
    experiment = managed(request, name)
    chosen = experiment.arrivals.all()
    if "all" not in request.POST:
        chosen = chosen.filter(participant=request.POST.get("participant", "").replace("\0", ""))
    invitations.forget_participants(chosen)
    return redirect("participants", name)

"""Pages for an experiment's invitations, consent text, participants sent by a platform, and labelers."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from human_feedback_site.feedback.addresses import base_url
from human_feedback_site.feedback.models import (
    Experiment,
    Invite,
    Participation,
    validate_labeler_name,
)
from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.views import acts, managed, shows, signed_in
from human_feedback_site.feedback.selectors import monitoring
from human_feedback_site.feedback.services import accounts, moderation, parts
from human_feedback_site.feedback.services import invites as invitations
from human_feedback_site.feedback.services import wording as service
from human_feedback_site.feedback.services.invites import PROLIFIC_RETURN_URL

if TYPE_CHECKING:  # generic only in the type stubs
    ModelForm: TypeAlias = forms.ModelForm[Invite]
else:
    ModelForm = forms.ModelForm

MOST_DAYS = 365
_MOST = 1_000_000


class InviteForm(ModelForm):
    """Base class of both invitation forms, with fields for the expiry and the number of answers."""

    days = forms.IntegerField(min_value=1, max_value=MOST_DAYS, initial=30)
    answers_wanted = forms.IntegerField(min_value=1, max_value=_MOST, required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if type(field.widget) is forms.TextInput:
                field.widget.attrs["dir"] = "auto"

    def save_for(self, experiment: Experiment) -> Invite:
        """Save and return the invitation described by this form, which must be valid."""
        self.instance.experiment = experiment
        self.instance.expires_at = timezone.now() + timedelta(days=self.cleaned_data["days"])
        self.instance.save()
        return self.instance


class NamedForm(InviteForm):
    """Form for a link that signs in one named labeler."""

    labeler_name = forms.CharField(validators=[validate_labeler_name])
    once = forms.BooleanField(required=False)

    class Meta:
        model = Invite
        fields = ("answers_wanted",)

    def save_for(self, experiment: Experiment) -> Invite:
        """Add the labeler to the experiment, creating the labeler if needed, and save the invitation."""
        self.instance.kind = Invite.Kind.NAMED
        self.instance.labeler = accounts.invite(experiment, self.cleaned_data["labeler_name"])
        self.instance.limit = 1 if self.cleaned_data["once"] else None
        return super().save_for(experiment)


class AnonymousForm(InviteForm):
    """Form for a link that many people can use, each under a new pseudonym."""

    limit = forms.IntegerField(min_value=1, max_value=_MOST, initial=20)
    return_url = forms.URLField(required=False, initial=PROLIFIC_RETURN_URL, assume_scheme="https")

    class Meta:
        model = Invite
        fields = (
            *("note", "limit", "answers_wanted", "platform", "study"),
            *("completion_code", "screen_out_code", "return_url"),
        )

    def clean(self) -> dict[str, object]:
        """Require a completion code if a platform is chosen; otherwise clear the platform fields."""
        cleaned: dict[str, object] = super().clean() or {}
        if cleaned.get("platform") and cleaned.get("completion_code") == "":
            self.add_error(
                "completion_code", _("Enter the completion code that the platform uses to pay participants.")
            )
        if not cleaned.get("platform"):
            for name in ("study", "completion_code", "screen_out_code", "return_url"):
                cleaned[name] = ""
        return cleaned

    def save_for(self, experiment: Experiment) -> Invite:
        """Save and return an invitation for anonymous labelers."""
        self.instance.kind = Invite.Kind.ANONYMOUS
        return super().save_for(experiment)


INVITES_PER_PAGE = 20
PARTICIPANTS_PER_PAGE = 50
FORMS = {Invite.Kind.NAMED: NamedForm, Invite.Kind.ANONYMOUS: AnonymousForm}
_PARTS = {
    parts.Part.GOING_ON: _("in progress"),
    parts.Part.COMPLETE: _("complete"),
    parts.Part.SCREENED_OUT: _("screened out"),
}
_BADGES = {parts.Part.COMPLETE: " running", parts.Part.SCREENED_OUT: " paused"}


@dataclass(frozen=True)
class InviteRow:
    """Invitation in the list; ``link`` is empty if the invitation can no longer be used."""

    invite: Invite
    link: str
    state: Promise


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


@acts
def revoke(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Revoke an invitation, so that no one else can join with its link."""
    experiment = managed(request, name)
    invite = get_object_or_404(experiment.invites, pk=number)
    invitations.revoke(experiment.invites.filter(pk=invite.pk))
    return redirect(f"{reverse('invites', args=[name])}#invite-{number}")


@shows
def participants(request: HttpRequest, name: str) -> HttpResponse:
    """List the participants sent by a platform, so that the researcher can pay them on the platform.

    This is the only page that shows their platform IDs.
    """
    experiment = managed(request, name)
    page = Paginator(experiment.arrivals.select_related("labeler"), PARTICIPANTS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    rows = [
        {"arrival": arrival, "answered": answered, "part": _PARTS[part], "badge": _BADGES.get(part, "")}
        for arrival, (answered, part) in zip(page, parts.parts_of(list(page)), strict=True)
    ]
    return render(request, "pages/participants.html", {"experiment": experiment, "page": page, "rows": rows})


@acts
def forget(request: HttpRequest, name: str) -> HttpResponse:
    """Delete one participant's platform ID, or all participants' IDs; their labels are kept."""
    experiment = managed(request, name)
    chosen = experiment.arrivals.all()
    if "all" not in request.POST:
        chosen = chosen.filter(participant=request.POST.get("participant", "").replace("\0", ""))
    invitations.forget_participants(chosen)
    return redirect("participants", name)


@shows
def labeler(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Show the confirmation page for blocking or readmitting a labeler of an experiment."""
    context = {"participation": _chosen(request, name, number)}
    return render(request, "pages/labeler.html", context)


@acts
def block(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Stop a labeler and withdraw all their labels in this experiment. Idempotent."""
    chosen = _chosen(request, name, number)
    moderation.block(Participation.objects.filter(pk=chosen.pk), signed_in(request))
    return _done(chosen)


@acts
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

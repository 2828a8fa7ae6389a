"""Invitation links: sign in the person who opens one, or explain why the link doesn't work."""

from collections.abc import Mapping

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.core.signing import BadSignature, SignatureExpired
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from human_feedback_site.feedback import errors
from human_feedback_site.feedback.models import Experiment, Invite, Labeler
from human_feedback_site.feedback.pages.views import message
from human_feedback_site.feedback.services import accounts, invites, parts

_EXPIRED = (410, _("This invitation has expired"), _("Ask the researcher who sent it for a new link."))
_INVALID = (
    404,
    _("This invitation is not valid"),
    _("The link may be incomplete. Make sure you copied all of it."),
)
REFUSALS: Mapping[type[Exception], tuple[int, Promise, Promise]] = {
    SignatureExpired: _EXPIRED,
    errors.ExpiredError: _EXPIRED,
    BadSignature: _INVALID,
    errors.NotFoundError: _INVALID,
    errors.WithdrawnError: (
        410,
        _("This invitation was withdrawn"),
        _("Contact the researcher who sent it."),
    ),
    errors.UsedUpError: (
        410,
        _("No spots left"),
        _("This link has reached its limit. If you came from a platform, return your submission there."),
    ),
    errors.ClosedError: (
        410,
        _("This experiment is over"),
        _("It needs no more answers. Thank you anyway!"),
    ),
    errors.UnknownParticipantError: (
        400,
        _("The link from Prolific is incomplete"),
        _(
            "Missing or malformed: %(names)s. Open the study again from its Prolific page. If this happens "
            "again, show this page to the researcher."
        ),
    ),
    errors.OtherStudyError: (
        403,
        _("This link belongs to a different study"),
        _("Open the study again from its Prolific page. If this happens again, contact the researcher."),
    ),
}


@require_http_methods(["GET", "POST"])
@never_cache
def join(request: HttpRequest, token: str) -> HttpResponseBase:
    """Sign in the person who opens an invitation link.

    A confirmation page is shown first if joining would sign out a different user, or if it would count as a
    use and the invitation is anonymous or has a use limit.
    """
    try:
        response = _join(request, token)
    except tuple(REFUSALS) as error:
        response = _refusal(request, error)
    # The URL may contain a participant ID, which must not reach the next site as the referrer.
    response.headers["Referrer-Policy"] = "strict-origin"
    return response


def _refusal(request: HttpRequest, error: Exception) -> HttpResponse:
    status, heading, text = next(REFUSALS[each] for each in type(error).__mro__ if each in REFUSALS)
    if isinstance(error, errors.UnknownParticipantError):
        return message(request, status, heading, text % {"names": ", ".join(error.names)})
    return message(request, status, heading, text)


def _join(request: HttpRequest, token: str) -> HttpResponseBase:
    number = accounts.kept_invite(token)
    if number is None:
        labeler, experiment = accounts.accept_invite(token)
        return _obstacle(request, labeler, experiment) or _resume(request, labeler, experiment)
    invite = invites.open_invite(number)
    sent = None
    if invite.platform == Invite.Platform.PROLIFIC:
        sent = invites.sent_by_prolific(request.POST if request.method == "POST" else request.GET)
    user = request.user if isinstance(request.user, User) else None
    known = invites.known_labeler(invite, user, sent)
    own = invites.own_labeler(invite, user)
    context = {"experiment": invite.experiment, "invite": invite, "sent": _fields(sent), "own": own}
    obstacle = _obstacle(request, known, invite.experiment, context) if known else None
    if obstacle is not None:
        return obstacle
    at_once = invite.kind == Invite.Kind.NAMED and invite.limit is None
    if known is not None and invites.let_in_before(invite, known, user, sent):
        return _resume(request, known, invite.experiment, invite)
    if request.method == "GET" and not at_once:
        invites.refuse_if_closed(invite, sent)
        return render(request, "pages/start.html", context)
    own = own if "own" in request.POST else None
    return _enter(request, invites.admit(invite, sent, own), invite.experiment)


def _fields(sent: invites.PlatformParticipant | None) -> Mapping[str, str]:
    """Return the platform's URL parameters, to be repeated as hidden fields in the next form."""
    return dict(zip(invites.PROLIFIC_NAMES, vars(sent).values(), strict=True)) if sent else {}


def _obstacle(
    request: HttpRequest,
    labeler: Labeler,
    experiment: Experiment,
    context: Mapping[str, object] | None = None,
) -> HttpResponseBase | None:
    """Return the page to show if ``labeler`` can't be signed in yet, or None if sign-in can proceed.

    Staff are redirected to sign in with their password. Anyone signed in as a different user must confirm
    the switch.
    """
    if request.user == labeler.user:
        return None
    if labeler.user.is_staff:  # a link alone must not give access to the admin
        return redirect(f"{reverse('login')}?{urlencode({'next': reverse('label', args=[experiment.name])})}")
    if request.method == "GET" and request.user.is_authenticated:
        return render(
            request, "pages/join.html", {**(context or {}), "labeler": labeler, "experiment": experiment}
        )
    return None


def _resume(
    request: HttpRequest, labeler: Labeler, experiment: Experiment, invite: Invite | None = None
) -> HttpResponse:
    """Sign in a labeler without counting a use of the invitation; credit new answers to ``invite``.

    ``invite`` is None for a link that a training run printed; new answers are then credited to no invitation.
    """
    parts.come_by(labeler, experiment, invite)
    return _enter(request, labeler, experiment)


def _enter(request: HttpRequest, labeler: Labeler, experiment: Experiment) -> HttpResponse:
    if request.user != labeler.user:
        login(request, labeler.user, backend=settings.AUTHENTICATION_BACKENDS[0])
    return redirect("label", experiment.name)

"""Ways in: invitations, links that runs print, and rate-limited sign-in with a password; sign-out."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth import login
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.core.exceptions import ValidationError
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
from human_feedback_site.feedback.addresses import client_address
from human_feedback_site.feedback.errors import LinkEndedError, TooManyAttemptsError
from human_feedback_site.feedback.models import Experiment, Invite, Labeler
from human_feedback_site.feedback.pages.sso.provider import sign_out_url
from human_feedback_site.feedback.pages.views import WATCHED, message
from human_feedback_site.feedback.selectors.labeling import newest_kind
from human_feedback_site.feedback.services import accounts, invites, limits, parts

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
    LinkEndedError: (
        410,
        _("This link no longer works"),
        _("Open the link that was printed last. If the run has ended, “teach site” prints a new one."),
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
    """Sign in the person who opens an invitation, or a link that a run or ``teach site`` printed.

    For an invitation, a confirmation page is shown first if joining would sign out a different user, or if it
    would count as a use and the invitation is anonymous or has a use limit.
    """
    code = accounts.parse_code(token)
    try:
        response = _own(request, code) if code is not None and code.is_owners else _join(request, token)
    except tuple(REFUSALS) as error:
        response = _refusal(request, error)
    # The URL may contain a participant ID, which must not reach the next site as the referrer.
    response.headers["Referrer-Policy"] = "strict-origin"
    return response


def _refusal(request: HttpRequest, error: Exception) -> HttpResponse:
    if isinstance(error, BadSignature | LinkEndedError) and not isinstance(error, SignatureExpired):
        try:
            limits.count_wrong_token(client_address(request))
        except TooManyAttemptsError as many:
            wait = _("Too many attempts. Try again in %(minutes)s min.") % {"minutes": many.minutes}
            response = message(request, 429, _("Too many wrong links"), wait)
            response.headers["Retry-After"] = str(many.wait)
            return response
    status, heading, text = next(REFUSALS[each] for each in type(error).__mro__ if each in REFUSALS)
    if isinstance(error, errors.UnknownParticipantError):
        return message(request, status, heading, text % {"names": ", ".join(error.names)})
    return message(request, status, heading, text)


def _join(request: HttpRequest, token: str) -> HttpResponseBase:
    number = accounts.stored_invite(token)
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
        kind = newest_kind(invite.experiment)
        return render(request, "pages/start.html", {**context, "kind_template": f"pages/kinds/{kind}.html"})
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
    """Return the page to show if ``labeler`` can't be signed in yet, or None.

    Staff must sign in with their password. Anyone signed in as a different user must confirm the switch.
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
    """Sign in a labeler without counting a use; new answers are credited to ``invite``."""
    parts.come_by(labeler, experiment, invite)
    return _enter(request, labeler, experiment)


def _enter(request: HttpRequest, labeler: Labeler, experiment: Experiment) -> HttpResponse:
    if request.user != labeler.user:
        login(request, labeler.user, backend=settings.AUTHENTICATION_BACKENDS[0])
    return redirect("label", experiment.name)


def _own(request: HttpRequest, code: accounts.Code) -> HttpResponse:
    """Open the home page for the holder of a link that a run or ``teach site`` printed.

    A run's link lets this session manage the experiment. The user stays signed in, and may label it; if no
    one is signed in, the link's labeler is. Staff must enter their password. ``teach site``'s link signs in
    the site's admin.
    """
    if not code.numbers:
        admin = accounts.open_site_link(code)
        if request.user != admin:
            login(request, admin, backend=settings.AUTHENTICATION_BACKENDS[0])
        return redirect("home")
    experiment, api_token, labeler = accounts.open_owner_link(code)
    if isinstance(request.user, User):
        accounts.take_part(request.user, experiment)
    elif labeler is None or labeler.user.is_staff:  # a run's link must not give access to the admin
        return redirect_to_login(reverse("experiment", args=[experiment.name]))
    else:
        login(request, labeler.user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session[WATCHED] = request.session.get(WATCHED, {}) | {str(experiment.pk): api_token.digest}
    return redirect("home")


class SignInForm(AuthenticationForm):
    """Sign-in form with limited attempts; beyond them, ``wait`` is the seconds until the next."""

    wait: int | None = None

    def clean(self) -> dict[str, Any]:
        """Check the password; raise ``ValidationError`` if it is wrong or there were too many attempts."""
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if self.request is None or not name or not password:
            return super().clean()
        address = client_address(self.request)
        try:
            limits.begin_sign_in(name, address)
        except TooManyAttemptsError as error:
            self.wait = error.wait
            raise ValidationError(
                _("Too many attempts. Try again in %(minutes)s min."),
                code="too_many_attempts",
                params={"minutes": error.minutes},
            ) from None
        cleaned = super().clean()
        limits.end_sign_in(name, address)
        return cleaned


class AdminSignInForm(SignInForm, AdminAuthenticationForm):
    """Sign-in form for the admin, which accepts only staff users."""


class SignIn(LoginView):
    """Sign-in page of the site."""

    authentication_form = SignInForm

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        """Add what the button for single sign-on needs, and whether the browser sent any cookie.

        A browser that blocks cookies gets here from an invitation link, which has just signed it in.
        """
        shown = {
            "single_sign_on": settings.SINGLE_SIGN_ON,
            "provider": settings.OIDC_NAME,
            "has_cookies": bool(self.request.COOKIES),
            "embedded": bool(settings.REOPEN_COMMAND),
        }
        return super().get_context_data(**context) | shown

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the form again; after too many attempts, set status 429 and a ``Retry-After`` header."""
        response = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.wait is not None:
            response.status_code = 429
            response.headers["Retry-After"] = str(form.wait)
        return response


class SignOut(LogoutView):
    """Ends the session and, after single sign-on, the one at the identity provider."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Sign out here, then show a page that leads to the provider.

        The Content-Security-Policy forbids redirecting there from a form.
        """
        elsewhere = sign_out_url(request)
        response = super().post(request, *args, **kwargs)
        if elsewhere is None:
            return response
        heading, text = _("You are signed out here"), _("Signing you out of single sign-on, too…")
        return message(request, 200, heading, text, onward=elsewhere)

"""Rate-limited sign-in with username and password, for the site's sign-in page and the admin; sign-out."""

from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.addresses import client_address
from human_feedback_site.feedback.errors import TooManyAttemptsError
from human_feedback_site.feedback.pages.sso.provider import sign_out_url
from human_feedback_site.feedback.pages.views import message
from human_feedback_site.feedback.services import limits


class SignInForm(AuthenticationForm):
    """Sign-in form that allows a limited number of attempts.

    ``wait`` is the number of seconds until the next attempt is allowed, or None if the limit hasn't been
    reached.
    """

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

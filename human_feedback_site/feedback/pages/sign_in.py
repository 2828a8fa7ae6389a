"""Rate-limited sign-in with username and password, for the site's sign-in page and the admin."""

from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.addresses import client_address
from human_feedback_site.feedback.errors import TooManyAttemptsError
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

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the form again; after too many attempts, set status 429 and a ``Retry-After`` header."""
        response = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.wait is not None:
            response.status_code = 429
            response.headers["Retry-After"] = str(form.wait)
        return response

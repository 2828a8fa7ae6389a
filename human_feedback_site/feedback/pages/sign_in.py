"""Signing in with a name and a password, on the site's page and on the admin's."""

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
    """A name and a password, which may be tried a few times; ``wait`` is how many seconds are left then."""

    wait: int | None = None

    def clean(self) -> dict[str, Any]:
        """Look at the password unless too many were tried."""
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if self.request is None or not name or not password:
            return super().clean()
        address = client_address(self.request)
        try:
            limits.begin_sign_in(name, address)
        except TooManyAttemptsError as error:
            self.wait = error.wait
            raise ValidationError(
                _("Too many attempts. You can try again in %(minutes)s min."),
                code="too_many_attempts",
                params={"minutes": error.minutes},
            ) from None
        cleaned = super().clean()
        limits.end_sign_in(name, address)
        return cleaned


class AdminSignInForm(SignInForm, AdminAuthenticationForm):
    """The same for staff alone."""


class SignIn(LoginView):
    """The site's own page."""

    authentication_form = SignInForm

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the form again; where too many were tried, with the status that says so."""
        response = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.wait is not None:
            response.status_code = 429
            response.headers["Retry-After"] = str(form.wait)
        return response

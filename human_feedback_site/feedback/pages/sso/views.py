"""Pages that send a browser to the identity provider, and sign in the user when it comes back."""

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import wraps

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from mozilla_django_oidc.views import OIDCAuthenticationCallbackView, OIDCAuthenticationRequestView

from human_feedback_site.feedback.errors import ProviderError
from human_feedback_site.feedback.pages.sso.backend import Discovered
from human_feedback_site.feedback.pages.sso.provider import ID_TOKEN
from human_feedback_site.feedback.pages.views import message

_log = logging.getLogger(__name__)
View = Callable[[HttpRequest], HttpResponseBase]


def _explain_failures(view: View) -> View:
    """Decorate a view to show a page if the identity provider fails, and to log the reason."""

    @wraps(view)
    def explained(request: HttpRequest) -> HttpResponseBase:
        try:
            return view(request)
        except ProviderError as error:
            _log.warning("Single sign-on failed: %s", " ".join(str(error).split()))
            heading = _("The sign-in service is not available")
            return message(request, 502, heading, _("Try again later. If it still fails, tell an admin."))

    return explained


class _Leave(Discovered, OIDCAuthenticationRequestView):  # type: ignore[misc]  # the package has no types
    """Redirects to the provider, with state, nonce and PKCE challenge."""


class _Return(Discovered, OIDCAuthenticationCallbackView):  # type: ignore[misc]
    user: User | None = None

    def get(self, request: HttpRequest) -> HttpResponse:
        """Check that this browser began the sign-in before anything else happens."""
        if request.GET.get("state") not in request.session.get("oidc_states", {}):
            heading = _("This sign-in has expired")
            text = _(
                "Open the sign-in page and start again. Your browser must accept cookies from this site."
            )
            return message(request, 400, heading, text)
        response: HttpResponse = super().get(request)
        return response

    def login_success(self) -> HttpResponse:
        """Start a session of limited length, and redirect to the page that the user wanted to see."""
        assert self.user is not None  # noqa: S101 (the caller checked it)
        session, address = self.request.session, self.success_url
        id_token = session.get(ID_TOKEN)
        login(self.request, self.user, backend=settings.AUTHENTICATION_BACKENDS[0])
        session[ID_TOKEN] = id_token  # login() clears the session of a different user
        session.set_expiry(timezone.now() + timedelta(hours=settings.OIDC_SESSION_HOURS))
        return HttpResponseRedirect(address)

    def login_failure(self) -> HttpResponse:
        """Explain that the provider refused, or that the account is disabled here."""
        if self.user is not None:
            text = _("Your account on this site is disabled. Contact an admin.")
        else:
            text = _("The sign-in service refused. Try again, or ask an admin for access.")
        return message(self.request, 403, _("You are not signed in"), text)


leave = never_cache(_explain_failures(_Leave.as_view()))
come_back = never_cache(_explain_failures(_Return.as_view()))


urlpatterns = [
    path("", leave, name="sso"),
    path("callback/", come_back, name="sso-callback"),
]

"""Watch links: let the browser that opens one manage the experiment."""

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.views import redirect_to_login
from django.core.signing import BadSignature, SignatureExpired
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.errors import WithdrawnError
from human_feedback_site.feedback.pages.views import WATCHED, message
from human_feedback_site.feedback.services import watching


@require_safe
@never_cache
def watch(request: HttpRequest, token: str) -> HttpResponse:
    """Let this session manage the link's experiment, and show the experiment's page.

    The user stays signed in. If no one is signed in, the link's labeler is; staff must enter their password.
    """
    try:
        experiment, api_token, labeler = watching.open_link(token)
    except (BadSignature, WithdrawnError) as error:
        status = 410 if isinstance(error, SignatureExpired | WithdrawnError) else 404
        text = _("Open the link that the run printed last, or sign in.")
        return message(request, status, _("This link doesn’t work"), text)
    if not request.user.is_authenticated:
        if labeler is None or labeler.user.is_staff:  # a link alone must not give access to the admin
            return redirect_to_login(reverse("experiment", args=[experiment.name]))
        login(request, labeler.user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session[WATCHED] = request.session.get(WATCHED, {}) | {str(experiment.pk): api_token.digest}
    return redirect("experiment", experiment.name)

"""Watch links, which a run prints: they let a browser watch, pause and finish the run's experiment.

A signed link names the API token of the trainer that requested it. The link, and every session that opened
it, stops working once that token is revoked, replaced or expired, or its user is no longer staff.
"""

from django.core.signing import BadSignature
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.urls import reverse

from human_feedback_site.feedback.errors import WithdrawnError
from human_feedback_site.feedback.models import ApiToken, Experiment, Labeler
from human_feedback_site.feedback.services import short_links

_SALT = "feedback.watch"


def watch_url(experiment: Experiment, labeler_name: str, token: ApiToken, base_url: str) -> str:
    """Return a signed watch link under ``base_url``. It signs in ``labeler_name`` if no one is signed in."""
    labeler = Labeler.objects.get(invited_by=experiment.owner_id, name=labeler_name)
    code = short_links.make_code(experiment.pk, labeler.pk, _SALT, token.digest)
    return base_url.rstrip("/") + reverse("watch", args=[code])


def open_link(link: str) -> tuple[Experiment, ApiToken, Labeler | None]:
    """Return a watch link's experiment, its API token, and its labeler unless they were removed.

    Raises :class:`django.core.signing.BadSignature` if the link is incomplete or expired, and
    :class:`WithdrawnError` if the experiment no longer exists or the link's API token no longer works.
    """
    code = short_links.parse_code(link)
    if code is None:
        raise BadSignature("The link is not complete.")
    experiment = Experiment.objects.filter(pk=code.experiment).first()
    if experiment is None:
        raise WithdrawnError("This link's experiment no longer exists.")
    token = next((each for each in _tokens_of(experiment) if code.check(_SALT, each.digest)), None)
    if token is None:
        raise WithdrawnError("This link's API token no longer works.")
    invited = Labeler.objects.select_related("user").filter(
        pk=code.labeler, invited_by=experiment.owner_id, experiments=experiment, user__is_active=True
    )
    return experiment, token, invited.first()


def _tokens_of(experiment: Experiment) -> QuerySet[ApiToken]:
    usable = ApiToken.objects.exclude(expires_at__lte=Now()).filter(user__is_active=True, user__is_staff=True)
    return usable.filter(user=experiment.owner_id, experiment__in=("", experiment.name))

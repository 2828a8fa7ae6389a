"""Watch links, which a run prints: they let a browser watch, pause and finish the run's experiment.

A signed link names the API token of the trainer that requested it. The link, and every session that opened
it, stops working once that token is revoked, replaced or expired, or its user is no longer staff.
"""

from django.conf import settings
from django.core import signing
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.urls import reverse

from human_feedback_site.feedback.errors import WithdrawnError
from human_feedback_site.feedback.models import ApiToken, Experiment, Labeler

_SALT = "feedback.watch"
_DIGITS = 16  # of the token's digest, to keep links short


def watch_url(experiment: Experiment, labeler_name: str, token: ApiToken, base_url: str) -> str:
    """Return a signed watch link under ``base_url``. It signs in ``labeler_name`` if no one is signed in."""
    claims = {"experiment": experiment.pk, "labeler": labeler_name, "token": token.digest[:_DIGITS]}
    return base_url.rstrip("/") + reverse("watch", args=[signing.dumps(claims, salt=_SALT)])


def open_link(link: str) -> tuple[Experiment, ApiToken, Labeler | None]:
    """Return a watch link's experiment, its API token, and its labeler unless they were removed.

    Raises :class:`django.core.signing.BadSignature` if the link is forged or expired, and
    :class:`WithdrawnError` if the experiment no longer exists or its API token no longer works.
    """
    claims = signing.loads(link, salt=_SALT, max_age=settings.INVITE_MAX_AGE_SECONDS)
    experiment = Experiment.objects.filter(pk=claims["experiment"]).first()
    if experiment is None:
        raise WithdrawnError("This link's experiment no longer exists.")
    token = _tokens_of(experiment).filter(digest__startswith=claims["token"]).first()
    if token is None:
        raise WithdrawnError("This link's API token no longer works.")
    invited = Labeler.objects.select_related("user").filter(
        invited_by=experiment.owner_id, name=claims["labeler"], experiments=experiment, user__is_active=True
    )
    return experiment, token, invited.first()


def _tokens_of(experiment: Experiment) -> QuerySet[ApiToken]:
    usable = ApiToken.objects.exclude(expires_at__lte=Now()).filter(user__is_active=True, user__is_staff=True)
    return usable.filter(user=experiment.owner_id, experiment__in=("", experiment.name))

"""Home page, quick invitation and language switch, with helpers shared by all page views.

Every view reads data with selectors, writes data with services, and renders one template.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import split_domain_port
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.functional import Promise, SimpleLazyObject
from django.utils.translation import gettext as _
from django.views import i18n
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from human_feedback_site.environment import LOOPBACK
from human_feedback_site.feedback.addresses import base_url
from human_feedback_site.feedback.models import Experiment, Labeler, validate_labeler_name
from human_feedback_site.feedback.pages.overview import experiment_rows
from human_feedback_site.feedback.selectors.experiments import experiments_to_manage, experiments_watched
from human_feedback_site.feedback.selectors.labeling import before_after
from human_feedback_site.feedback.services import invites

EXPERIMENTS_PER_PAGE = 30
_View = TypeVar("_View", bound=Callable[..., HttpResponseBase])
WATCHED = "watched"  # session key: digest of the API token of each owner link opened, by experiment ID


def shows(view: _View) -> _View:
    """Restrict a view to GET and HEAD requests of signed-in users; its responses are not cached."""
    return require_safe(login_required(never_cache(view)))


def acts(view: _View) -> _View:
    """Restrict a view to POST requests of signed-in users; its responses are not cached."""
    return require_POST(login_required(never_cache(view)))


@shows
def home(request: HttpRequest) -> HttpResponse:
    """List the experiments that the user manages or may label."""
    user = signed_in(request)
    page = Paginator(experiment_rows(user, managed_by(request)), EXPERIMENTS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    changes = before_after(user, [each for each in page if not each.managed])  # type: ignore[attr-defined]
    context = {
        "page": page,
        "rows": [(each, changes.get(each.pk)) for each in page],
        "has_videos": bool(changes),
        "unsaved": sender_data(user),
    }
    return render(request, "pages/home.html", context)


@acts
def invite(request: HttpRequest, name: str) -> HttpResponse:
    """Create or extend an invitation for a named labeler and show the invitation link."""
    found = managed(request, name)
    labeler_name = request.POST.get("labeler", "").strip()
    try:
        validate_labeler_name(labeler_name)
    except ValidationError as error:
        return message(request, 400, _("That isn’t a valid labeler name"), str(error.message))
    link = invites.link_of(invites.invite_by_name(found, labeler_name), base_url(request))
    is_local = split_domain_port(urlsplit(link).netloc)[0] in LOOPBACK
    context = {"experiment": found, "labeler_name": labeler_name, "link": link, "is_local": is_local}
    return render(request, "pages/invited.html", context)


def set_language(request: HttpRequest) -> HttpResponse:
    """Set the user's language and redirect to the previous page."""
    answer = i18n.set_language(request)
    if answer.headers.get("Location") == "/":  # Django's default, which ignores the site's path prefix
        answer.headers["Location"] = reverse("home")
    return answer


def message(
    request: HttpRequest, status: int, heading: str | Promise, text: str | Promise, onward: str | None = None
) -> HttpResponse:
    """Return a page with a heading and a line of text; it leads on to the URL ``onward``, if any."""
    context = {"heading": heading, "text": text, "onward": onward}
    return render(request, "pages/message.html", context, status=status)


def first_error(form: Form) -> str:
    """Return the first error message of an invalid form."""
    return str(next(iter(form.errors.values()))[0])


def signed_in(request: HttpRequest) -> User:
    """Return the signed-in user; only for views decorated with ``login_required``."""
    assert isinstance(request.user, User)  # noqa: S101  (tells the type checker what the decorator ensures)
    return request.user


def managed(request: HttpRequest, name: str) -> Experiment:
    """Return the experiment, or raise ``Http404`` if the user doesn't manage it."""
    return get_object_or_404(managed_by(request), name=name)


def managed_by(request: HttpRequest) -> QuerySet[Experiment]:
    """Return the experiments that the user manages, and those whose owner links this session has opened."""
    managed, watched = experiments_to_manage(signed_in(request)), request.session.get(WATCHED)
    return managed | experiments_watched(watched) if watched else managed


def account(request: HttpRequest) -> dict[str, Any]:
    """Add to every template's context, looked up lazily, the user's display name (``account_name``).

    For people who manage experiments, ``reopen`` is the command that opens the site after it has stopped.
    """
    user = getattr(request, "user", AnonymousUser())

    def reopen() -> str:
        return settings.REOPEN_COMMAND if user.is_staff or request.session.get(WATCHED) else ""

    return {
        "account_name": SimpleLazyObject(lambda: name_of(user)),
        "reopen": SimpleLazyObject(reopen) if settings.REOPEN_COMMAND else "",
    }


def name_of(user: User | AnonymousUser) -> str:
    """Return the labeler's name as researchers see it; for staff and other users, return the username.

    Labeler names needn't be unique across researchers, so a labeler's username has a random suffix.
    """
    labeler = None if user.is_staff else Labeler.objects.filter(user=user.pk).first()
    return user.get_username() if labeler is None else labeler.name


def account_key(user: User) -> str:
    """Return the key under which a browser stores this user's unsaved answers.

    The user ID alone is not unique, because localStorage is per origin, and several sites can share an
    origin: sites under different paths on one host, or sites that run at the same URL at different times
    with different state folders. Two such sites may even be copies of each other. The key therefore includes
    the path prefix and the account's creation time.
    """
    site = f"{settings.FORCE_SCRIPT_NAME}:" if settings.FORCE_SCRIPT_NAME else ""
    return f"{site}{user.pk}-{int(user.date_joined.timestamp())}"


def sender_data(user: User) -> dict[str, Any]:
    """Return the data that a page's script needs to submit the user's unsaved answers."""
    return {
        "account": account_key(user),
        "csrf_cookie": settings.CSRF_COOKIE_NAME,
        "urls": {"labels": reverse("api-labels"), "session": reverse("session")},
        "refused": _("The site rejected an answer:"),
    }

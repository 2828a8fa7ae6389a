"""What goes for every request: its line in the log, what its body may be, and its answer's policy."""

import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django.utils.functional import SimpleLazyObject, empty

from human_feedback_site import logs
from human_feedback_site.feedback.api.problems import too_large
from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.store import media_store

_PROBES = frozenset({"/livez", "/readyz"})  # every few seconds, for ever
_NO_PAGES = ("/api/", "/media/", *_PROBES)  # nobody reads what these answer
_access = logging.getLogger("human_feedback_site.access")


def request_log(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Give each request an id, for its answer and all that is logged meanwhile, and log one line about it.

    The line names the pattern of the address, because addresses themselves may be keys.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        with logs.request(request.headers.get("X-Request-ID")) as request_id:
            start = time.perf_counter()
            response = get_response(request)
            response.headers["X-Request-ID"] = request_id
            _log(request, response, milliseconds=round(1000 * (time.perf_counter() - start)))
            return response

    return middleware


def _log(request: HttpRequest, response: HttpResponse, milliseconds: int) -> None:
    facts = {
        "method": request.method,
        "route": f"/{request.resolver_match.route}" if request.resolver_match else None,
        "status": response.status_code,
        "milliseconds": milliseconds,
        "user": _user_id(request),
    }
    level = logging.DEBUG if request.path_info in _PROBES else logging.INFO
    message = "%s %s %s, %s ms, user %s"
    _access.log(level, message, *("-" if fact is None else fact for fact in facts.values()), extra=facts)


def _user_id(request: HttpRequest) -> int | None:
    """Return whose request it was where that had to be known; asking only for the log would cost a query."""
    user = getattr(request, "user", None)
    if isinstance(user, SimpleLazyObject) and user._wrapped is empty:
        return None
    return getattr(user, "pk", None)


def readable_body(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Refuse what is larger than a form may be, before anything reads it, and forms that are not UTF-8.

    Django's own limit leaves files out, which it writes to the disk for any page that reads a form.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        try:
            length = int(request.META.get("CONTENT_LENGTH") or 0)
        except ValueError:
            length = 0  # as Django reads it, so that nothing is
        if length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            return too_large(request)
        charset = (request.content_params or {}).get("charset", "utf-8").lower()
        if request.content_type == "multipart/form-data" and charset not in {"utf-8", "utf8"}:
            raise BadRequest(f"A form must be UTF-8, not {charset}.")
        return get_response(request)

    return middleware


def page_of_refused_methods(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Show people a page where they open an address that only takes what a form sends, or the reverse."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        is_page = request.method in {"GET", "POST"} and not request.path_info.startswith(_NO_PAGES)
        if is_page and isinstance(response, HttpResponseNotAllowed) and not response.content:
            page = render(request, "405.html", status=HTTPStatus.METHOD_NOT_ALLOWED)
            page.headers["Allow"] = response.headers["Allow"]
            add_never_cache_headers(page)
            return page
        return response

    return middleware


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Allow pages to load from this site, and clips also from the media store and as Blobs."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy(_media_origin()))
        return response

    return middleware


def _media_origin() -> str | None:
    """Return where clips are; None where that cannot be told, which pages without clips do without."""
    try:
        return media_store().origin
    except MediaStoreError:
        return None


def policy(media_origin: str | None) -> str:
    """Return the policy for clips served from ``media_origin`` (None: from this site)."""
    media = f" {media_origin}" if media_origin else ""
    return "; ".join(
        (
            "default-src 'self'",
            "img-src 'self' data:",
            f"media-src 'self' blob:{media}",
            f"connect-src 'self'{media}",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )

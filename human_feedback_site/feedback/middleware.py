"""Middleware: access log, request body checks, HTML page for status 405, Content-Security-Policy."""

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

_PROBES = frozenset({"/livez", "/readyz"})  # health checks, requested every few seconds
_NO_PAGES = ("/api/", "/media/", "/metrics", *_PROBES)  # paths whose responses aren't pages for people
_access = logging.getLogger("human_feedback_site.access")


def request_log(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Assign each request an ID, return it in ``X-Request-ID``, and write one access log line.

    All log records of the request include the ID. The access log shows the URL pattern instead of the URL,
    because URLs may contain secrets such as invitation tokens.
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
    """Return the user's ID, or None if no user is signed in or if getting the ID would require a query."""
    user = getattr(request, "user", None)
    if isinstance(user, SimpleLazyObject) and user._wrapped is empty:
        return None
    return getattr(user, "pk", None)


def readable_body(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Reject multipart forms that aren't UTF-8, and bodies over ``DATA_UPLOAD_MAX_MEMORY_SIZE`` bytes.

    Bodies that are too large are rejected without reading them. Django itself doesn't apply that limit to
    uploaded files: it would write them to disk for any view that reads form data.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        try:
            length = int(request.META.get("CONTENT_LENGTH") or 0)
        except ValueError:
            length = 0  # as in Django, which then reads no body
        if length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            return too_large(request)
        charset = (request.content_params or {}).get("charset", "utf-8").lower()
        if request.content_type == "multipart/form-data" and charset not in {"utf-8", "utf8"}:
            raise BadRequest(f"Form data must be encoded as UTF-8, not {charset}.")
        return get_response(request)

    return middleware


def page_of_refused_methods(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Show an HTML page with status 405 for a GET request to a POST-only page URL, or vice versa."""

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
    """Set a Content-Security-Policy that allows this site and, for clips, the media store and blob URLs."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy(_media_origin()))
        return response

    return middleware


def _media_origin() -> str | None:
    """Return the media store's origin; None if clips come from this site or the store isn't available."""
    try:
        return media_store().origin
    except MediaStoreError:
        return None


def policy(media_origin: str | None) -> str:
    """Return the Content-Security-Policy that allows clips from ``media_origin`` as well as this site."""
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

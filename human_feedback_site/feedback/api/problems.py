"""Error responses in RFC 9457 format, including errors that Django raises before an API view runs."""

import logging
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views import csrf, defaults
from rest_framework.exceptions import APIException, NotAuthenticated, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_exception_handler

from human_feedback_site.feedback import health
from human_feedback_site.feedback.errors import (
    ConflictError,
    FeedbackError,
    MediaStoreError,
    NoConsentError,
    NotFoundError,
    NotInstalledError,
    UnreadableClipsError,
)
from human_feedback_site.logs import current_request_id

CONTENT_TYPE = "application/problem+json"
NO_CONSENT = "urn:rl-teacher:no-consent"
RETRY_AFTER_SECONDS = 5
_STATUS = {
    NoConsentError: HTTPStatus.FORBIDDEN,
    NotFoundError: HTTPStatus.NOT_FOUND,
    ConflictError: HTTPStatus.CONFLICT,
    UnreadableClipsError: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotInstalledError: HTTPStatus.NOT_IMPLEMENTED,
    MediaStoreError: HTTPStatus.SERVICE_UNAVAILABLE,
}

# Python 3.13 renamed these; responses don't depend on Python's version.
_TITLES = {
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}

_log = logging.getLogger(__name__)


def problem(status: int, detail: str, errors: list[dict[str, str]] | None = None) -> dict[str, Any]:
    """Return the JSON body of an RFC 9457 "problem details" response."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": _TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    return body if errors is None else {**body, "errors": errors}


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Convert an API view's exception to a problem response; None leaves it to Django's ``handler500``."""
    if isinstance(error, FeedbackError):
        return _refusal(error)
    response = drf_exception_handler(error, dict(context))
    if response is None:
        return None
    if isinstance(error, ValidationError):
        errors = [{"pointer": pointer, "detail": detail} for pointer, detail in _flatten(error.detail)]
        response.data = problem(response.status_code, "The request is invalid.", errors)
    else:
        response.data = problem(response.status_code, _detail(error))
    response.content_type = CONTENT_TYPE
    return response


def _refusal(error: FeedbackError) -> Response:
    status = _STATUS[type(error)]
    errors = None
    if isinstance(error, UnreadableClipsError):
        errors = [{"pointer": pointer, "detail": detail} for pointer, detail in error.clips.items()]
    body = problem(status, str(error), errors)
    if isinstance(error, NoConsentError):
        body["type"] = NO_CONSENT  # the labeling page recognizes this refusal by its type
    headers = {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        _log.error("%s", error)
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return Response(body, status=status, headers=headers, content_type=CONTENT_TYPE)


def _detail(error: Exception) -> str:
    if isinstance(error, NotAuthenticated):
        return 'Sign in, or send an API token in an "Authorization: Bearer tt_..." header.'
    if isinstance(error, APIException):
        return str(error.detail)
    return str(error) if not isinstance(error, Http404) else "This URL does not exist."


def _flatten(detail: Any, pointer: str = "#") -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer, message) for each leaf of DRF's nested validation errors."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            yield from _flatten(value, pointer if key == "non_field_errors" else f"{pointer}/{_escaped(key)}")
    elif isinstance(detail, list) and any(isinstance(item, Mapping) for item in detail):
        for index, value in enumerate(detail):
            yield from _flatten(value, f"{pointer}/{index}")
    elif isinstance(detail, list):
        for value in detail:
            yield from _flatten(value, pointer)
    else:
        yield pointer, str(detail)


def _escaped(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")


def _problem_response(status: int, detail: str) -> JsonResponse:
    return JsonResponse(problem(status, detail), status=status, content_type=CONTENT_TYPE)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a 400 response, for Django's ``handler400``."""
    if _is_api(request):
        return _problem_response(400, "The request is malformed.")
    return defaults.bad_request(request, exception)


def too_large(request: HttpRequest) -> HttpResponse:
    """Return a 413 response that states the request size limit."""
    detail = f"The request must not exceed {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes."
    if _is_api(request):
        return _problem_response(413, detail)
    return HttpResponse(detail, status=413, content_type="text/plain")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a 403 response, for Django's ``handler403``."""
    if _is_api(request):
        return _problem_response(403, str(exception) or "Permission denied.")
    return defaults.permission_denied(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a 404 response, for Django's ``handler404``."""
    if _is_api(request):
        return _problem_response(404, "This URL does not exist.")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Return a 500 response, or 503 if the database, media store or disk failed and a retry may help."""
    error = sys.exception()
    reason = health.temporary_reason(error)
    if reason is not None:
        health.log_once(reason, error)
        if reason == health.READ_ONLY:
            connection.close()  # after a failover, a new connection may reach a server that can be written
        response = unavailable(f"{reason} Try again soon.") if _is_api(request) else _failure_page(503)
        response._has_been_logged = True  # type: ignore[attr-defined]  # so that Django logs no traceback
        return response
    if not _is_api(request):
        return _failure_page(500)
    detail = f"Internal error; see request {current_request_id()} in the site's log. A retry may help."
    return _problem_response(500, detail)


def unavailable(detail: str) -> JsonResponse:
    """Return a 503 "problem details" response that asks the client to retry in a few seconds."""
    response = _problem_response(503, detail)
    response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _failure_page(status: int) -> HttpResponse:
    """Return an error page; rendering it without the request avoids querying the database for the user."""
    page = render_to_string("500.html", {"request_id": current_request_id()})
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    return HttpResponse(page, status=status, headers=headers)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Return a 403 response to a request without a valid CSRF token."""
    if _is_api(request):
        return _problem_response(403, f"CSRF verification failed: {reason}")
    return csrf.csrf_failure(request, reason)

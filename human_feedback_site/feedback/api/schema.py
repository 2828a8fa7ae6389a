"""OpenAPI metadata of endpoints: errors, examples and summaries."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.serializers import Serializer

from human_feedback_site.feedback.api.examples import examples
from human_feedback_site.feedback.api.serializers import PageSerializer, ProblemSerializer

_View = TypeVar("_View", bound=Callable[..., Any])
_PROBLEMS = {
    400: "The body or query is invalid; `errors` lists the fields.",
    401: "Not signed in, or the token is invalid.",
    403: "The user does not have the required role, or the CSRF token is missing.",
    404: "The object does not exist or belongs to another user.",
    409: "The request conflicts with recorded data.",
    422: "Clips cannot be read, or their keys do not start with the experiment's name; `errors` lists them.",
    501: "The site lacks an optional package that this endpoint needs; `detail` names it.",
    503: "The media store refuses the request or does not respond; `detail` has the cause. Try again later.",
}
_ALWAYS = (400, 401, 403, 404)


class Schema(AutoSchema):
    """Schema generator that uses the first sentence of a method's docstring as the endpoint's summary."""

    def get_summary(self) -> str:
        """Return the first sentence of the description, without backticks or the final period."""
        plain = self.get_description().replace("`", "")  # summaries are plain text
        return " ".join(plain.split()).partition(". ")[0].removesuffix(".")


def endpoint(
    operation: str,
    answer: type[Serializer[Any]],
    *,
    example: str,
    body: tuple[type[Serializer[Any]], str] | None = None,
    statuses: tuple[int, ...] = (200,),
    paged: bool = False,
) -> Callable[[_View], _View]:
    """Return a decorator that adds OpenAPI metadata to a method of an API view.

    ``example`` is a key of ``RESPONSES``; ``body`` is the request's serializer and a key of ``REQUESTS``. The
    statuses 400, 401, 403 and 404 are always documented.
    """
    good = {status: answer for status in statuses if status < 400}
    return extend_schema(
        operation_id=operation,
        request=body[0] if body else None,
        responses={**good, **_problems(status for status in statuses if status >= 400)},
        parameters=[PageSerializer] if paged else None,
        examples=examples(request=body[1] if body else None, response=example),
    )


def download_endpoint(
    operation: str, content_type: str, *, example: str | None = None
) -> Callable[[_View], _View]:
    """Return a decorator that adds OpenAPI metadata to a method that returns a file."""
    shown = [] if example is None else [OpenApiExample("Response", example, media_type=content_type)]
    answer = OpenApiResponse(OpenApiTypes.BINARY if example is None else OpenApiTypes.STR, examples=shown)
    missing = () if example is not None else (501,)
    return extend_schema(
        operation_id=operation, responses={(200, content_type): answer, **_problems(missing)}
    )


def _problems(statuses: Iterable[int]) -> dict[tuple[int, str], OpenApiResponse]:
    """Return the OpenAPI error responses for ``statuses`` and the status codes common to all endpoints."""
    return {
        (status, "application/problem+json"): OpenApiResponse(ProblemSerializer, _PROBLEMS[status])
        for status in sorted({*_ALWAYS, *statuses})
    }

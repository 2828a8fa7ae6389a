"""How endpoints are described: every one names its errors and carries examples."""

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
    400: "The body or the query is not valid; `errors` says where.",
    401: "Not signed in, or the token is not valid.",
    403: "Not for this role, or the CSRF token is missing.",
    404: "There is no such object, or it is somebody else's.",
    409: "It contradicts what is already recorded.",
    422: "The site cannot read a clip, or its key is not under the experiment's name; `errors` says which.",
    501: "The site was installed without what this needs.",
    503: "The media store does not answer, or refuses; `detail` says why. Try again later.",
}
_ALWAYS = (400, 401, 403, 404)


class Schema(AutoSchema):
    """Shows the first sentence of a method's docstring beside its path."""

    def get_summary(self) -> str:
        """Return that sentence, without its end."""
        plain = self.get_description().replace("`", "")  # code is written so in the description alone
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
    """Describe one method of a view.

    ``example`` names the response's example, ``body`` the request's serializer and example; ``statuses``
    holds those of success and, beside the usual ones, of problems.
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
    """Describe a method of a view that answers with a file; a text has an ``example``."""
    shown = [] if example is None else [OpenApiExample("Response", example, media_type=content_type)]
    answer = OpenApiResponse(OpenApiTypes.BINARY if example is None else OpenApiTypes.STR, examples=shown)
    missing = () if example is not None else (501,)
    return extend_schema(
        operation_id=operation, responses={(200, content_type): answer, **_problems(missing)}
    )


def _problems(statuses: Iterable[int]) -> dict[tuple[int, str], OpenApiResponse]:
    """Describe the usual problems, and those with these statuses."""
    return {
        (status, "application/problem+json"): OpenApiResponse(ProblemSerializer, _PROBLEMS[status])
        for status in sorted({*_ALWAYS, *statuses})
    }

"""The Content-Security-Policy of every answer: nothing but this site and the media store."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from human_feedback_site.feedback.media import media_store


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Allow pages to load from this site, and clips also from the media store and as Blobs."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy(media_store().origin))
        return response

    return middleware


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

"""View that serves clips from the media folder through signed links, with support for Range requests."""

import os
import re
from typing import BinaryIO

from django.conf import settings
from django.core import signing
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.media.faults import media_errors
from human_feedback_site.feedback.media.store import CONTENT_TYPE, FolderMedia, media_store

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@require_safe
def serve_clip(request: HttpRequest, token: str) -> HttpResponseBase:
    """Return the clip that a signed link refers to, or the byte range that the request asks for."""
    store = media_store()
    if not isinstance(store, FolderMedia):
        raise Http404("This site's clips are served by its S3 store.")
    with media_errors(f"the folder {store.root}"):
        try:
            clip = store.path_of_link(token).open("rb")
        except (signing.BadSignature, FileNotFoundError):
            raise Http404("This link has expired, or its clip is gone.") from None
        # Range applies to GET only (RFC 9110, section 14.2).
        wanted = _RANGE.fullmatch(request.headers.get("Range", "")) if request.method == "GET" else None
        if wanted is None or wanted.groups() == ("", ""):
            response: HttpResponseBase = FileResponse(clip, content_type=CONTENT_TYPE)
        else:
            response = _part(clip, *wanted.groups())
    del response.headers["Content-Disposition"]  # FileResponse's, with the file's name
    response.headers["Accept-Ranges"] = "bytes"
    response.headers["Cache-Control"] = f"private, max-age={settings.MEDIA_LINK_SECONDS}, immutable"
    return response


def _part(clip: BinaryIO, first: str, last: str) -> HttpResponseBase:
    """Return 206 with a byte range, whose ``first`` or ``last`` may be empty, or 416."""
    size = os.fstat(clip.fileno()).st_size
    if first:
        start, stop = int(first), min(int(last or size), size - 1)
    else:
        start, stop = max(0, size - int(last)), size - 1
    if start > stop:
        clip.close()
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{size}"})
    clip.seek(start)
    headers = {"Content-Range": f"bytes {start}-{stop}/{size}"}
    if stop == size - 1:
        return FileResponse(clip, status=206, content_type=CONTENT_TYPE, headers=headers)
    with clip:
        part = clip.read(stop + 1 - start)  # clips are limited to MAX_CLIP_BYTES
    return HttpResponse(part, status=206, content_type=CONTENT_TYPE, headers=headers)

"""What is wrong with a media store, in one line: the store, its answer and the likely cause."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from human_feedback_site.feedback.errors import MediaStoreError

_KEYS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_RIGHTS = "the keys need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
_REGION = "AWS_DEFAULT_REGION must be the bucket's region"
_CLOCK = "this machine's clock and the store's differ, set it by NTP"
_CLOCKS_DIFFER = timedelta(minutes=5)  # stores allow 15, some less
_OF_KEYS = {
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is wrong",
    "InvalidAccessKeyId": "the store knows no such AWS_ACCESS_KEY_ID",
    "InvalidToken": "AWS_SESSION_TOKEN is wrong",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired",
    "AccessDenied": _RIGHTS,
    "403": _RIGHTS,
    "401": _KEYS,
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
}
_OF_PLACES = {
    "NoSuchBucket": "make the bucket with manage.py setup_storage, or correct TEACHER_STORAGE",
    "BucketAlreadyExists": "the bucket is somebody else's, name another in TEACHER_STORAGE",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "301": _REGION,
}


@contextlib.contextmanager
def media_errors(place: str, bucket: str = "", endpoint: str | None = None) -> Iterator[None]:
    """Turn what goes wrong in here into :class:`MediaStoreError`, a line that names the ``place``.

    ``bucket`` and ``endpoint`` are those of an S3 store: a common mistake is to put one into the other.
    """
    try:
        yield
    except (BotoCoreError, ClientError, ResponseParserError, RecursionError, OSError) as error:
        raise MediaStoreError(f"{place} cannot be used: {_reason(error, bucket, endpoint)}") from error


def status_of(error: ClientError) -> int:
    """Return the HTTP status of a store's answer."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def code_of(error: ClientError) -> str:
    """Return the store's word for what is wrong; an answer to HEAD has only its status."""
    return error.response.get("Error", {}).get("Code", "")


def is_starting(error: Exception) -> bool:
    """Say whether a store does not answer, or not yet: waiting may help."""
    if isinstance(error, ClientError):
        return status_of(error) >= 500
    return isinstance(error, NoConnectionError | HTTPClientError)


def _reason(error: Exception, bucket: str, endpoint: str | None) -> str:
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            reason = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set"
        case ClientError():
            reason = _answer(error, bucket, endpoint)
        case OSError(strerror=str(words)):
            reason = words
        case SSLError():
            reason = f"{_line(error)}; check its certificate, and http or https in S3_ENDPOINT_URL"
        case NoConnectionError() | HTTPClientError():
            reason = f"{_line(error)}; is the store running, and S3_ENDPOINT_URL its address?"
        case RecursionError():  # botocore asks who redirects it where the bucket is, and is redirected again
            reason = f"it redirects; set S3_ENDPOINT_URL to where (https?), and {_REGION}"
        case ResponseParserError():
            reason = _misplaced(bucket, endpoint) or "it does not answer as S3 does, check S3_ENDPOINT_URL"
        case _:
            reason = _line(error)
    return reason


def _answer(error: ClientError, bucket: str, endpoint: str | None) -> str:
    status, code = status_of(error), code_of(error)
    shown = str(status) if code == str(status) else f"{status} {code}".strip()
    cause = _skew(error) if 400 <= status < 500 else None
    cause = cause or _OF_KEYS.get(code) or _misplaced(bucket, endpoint) or _OF_PLACES.get(code)
    if cause is None:
        said = error.response.get("Error", {}).get("Message") or _line(error)
        cause = f"{said}; see its log, and whether S3_ENDPOINT_URL is its address" if status >= 500 else said
    return " ".join(f"{shown}, {cause}".split())


def _skew(error: ClientError) -> str | None:
    """Return by how much the clocks differ, where it is too much; stores have many words for it."""
    said = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        ahead = datetime.now(UTC) - parsedate_to_datetime(said)
    except (ValueError, TypeError):
        return None
    if abs(ahead) < _CLOCKS_DIFFER:
        return None
    minutes = round(abs(ahead).total_seconds() / 60)
    direction = "ahead of" if ahead > timedelta() else "behind"
    return f"this machine's clock is {minutes} min {direction} the store's, set it by NTP"


def _misplaced(bucket: str, endpoint: str | None) -> str | None:
    """Return what is wrong with an endpoint that names the bucket, or has a path; None where neither is."""
    parts = urlsplit(endpoint or "")
    if parts.path:
        return (
            f"S3_ENDPOINT_URL has the path {parts.path}: leave the bucket out of it, TEACHER_STORAGE names it"
        )
    if bucket and (parts.hostname or "").startswith(f"{bucket}."):
        return f"if {bucket} in S3_ENDPOINT_URL is the bucket, leave it out, TEACHER_STORAGE names it"
    return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

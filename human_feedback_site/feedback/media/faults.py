"""One-line error messages that name the media store, its response and the likely cause."""

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
_RIGHTS = "the access key needs the permissions s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
_REGION = "AWS_DEFAULT_REGION must be the bucket's region"
_CLOCK = "this machine's clock and the store's differ; synchronize it with NTP"
_CLOCKS_DIFFER = timedelta(minutes=5)  # S3 allows 15 minutes, some stores less
_CREDENTIAL_CAUSES = {
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is wrong",
    "InvalidAccessKeyId": "the store doesn't know this AWS_ACCESS_KEY_ID",
    "InvalidToken": "AWS_SESSION_TOKEN is wrong",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired",
    "AccessDenied": _RIGHTS,
    "403": _RIGHTS,
    "401": _KEYS,
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
}
_LOCATION_CAUSES = {
    "NoSuchBucket": "create the bucket with manage.py setup_storage, or correct TEACHER_STORAGE",
    "BucketAlreadyExists": "the bucket belongs to another account; choose another name in TEACHER_STORAGE",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "301": _REGION,
}


@contextlib.contextmanager
def media_errors(place: str, bucket: str = "", endpoint: str | None = None) -> Iterator[None]:
    """Convert S3 and file errors to a one-line :class:`MediaStoreError` that starts with the store's name."""
    try:
        yield
    except (BotoCoreError, ClientError, ResponseParserError, RecursionError, OSError) as error:
        raise MediaStoreError(f"{place} cannot be used: {_reason(error, bucket, endpoint)}") from error


def status_of(error: ClientError) -> int:
    """Return the HTTP status code of the store's error response, or 0 if the response has none."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def code_of(error: ClientError) -> str:
    """Return the S3 error code, such as ``NoSuchBucket``; empty if there is none.

    For a HEAD request, whose response has no body, the code is the HTTP status code as a string.
    """
    return error.response.get("Error", {}).get("Code", "")


def is_starting(error: Exception) -> bool:
    """Return True if a retry may help: the connection failed or the store returned a 5xx status."""
    if isinstance(error, ClientError):
        return status_of(error) >= 500
    return isinstance(error, NoConnectionError | HTTPClientError)


def _reason(error: Exception, bucket: str, endpoint: str | None) -> str:
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            reason = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set"
        case ClientError():
            reason = _response_reason(error, bucket, endpoint)
        case OSError(strerror=str(words)):
            reason = words
        case SSLError():
            reason = f"{_line(error)}; check the store's certificate, and http or https in S3_ENDPOINT_URL"
        case NoConnectionError() | HTTPClientError():
            reason = f"{_line(error)}; check that the store is running and S3_ENDPOINT_URL is its URL"
        case RecursionError():  # botocore asks the redirecting server for the bucket's region, without end
            reason = (
                f"S3_ENDPOINT_URL redirects to another URL; use that one (perhaps https). Also, {_REGION}"
            )
        case ResponseParserError():
            reason = (
                _misplaced_bucket(bucket, endpoint)
                or "the response is not from an S3 store; check S3_ENDPOINT_URL"
            )
        case _:
            reason = _line(error)
    return reason


def _response_reason(error: ClientError, bucket: str, endpoint: str | None) -> str:
    status, code = status_of(error), code_of(error)
    shown = str(status) if code == str(status) else f"{status} {code}".strip()
    cause = _clock_skew(error) if 400 <= status < 500 else None
    cause = (
        cause
        or _CREDENTIAL_CAUSES.get(code)
        or _misplaced_bucket(bucket, endpoint)
        or _LOCATION_CAUSES.get(code)
    )
    if cause is None:
        said = error.response.get("Error", {}).get("Message") or _line(error)
        cause = (
            f"{said}; check the store's log, and that S3_ENDPOINT_URL is its URL" if status >= 500 else said
        )
    return " ".join(f"{shown}, {cause}".split())


def _clock_skew(error: ClientError) -> str | None:
    """Return a message if this machine's clock and the store's differ too much, else None.

    The clocks are compared here because stores report the problem with many different error codes.
    """
    said = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        ahead = datetime.now(UTC) - parsedate_to_datetime(said)
    except (ValueError, TypeError):
        return None
    if abs(ahead) < _CLOCKS_DIFFER:
        return None
    minutes = round(abs(ahead).total_seconds() / 60)
    direction = "ahead of" if ahead > timedelta() else "behind"
    return f"this machine's clock is {minutes} min {direction} the store's; synchronize it with NTP"


def _misplaced_bucket(bucket: str, endpoint: str | None) -> str | None:
    """Return a message if the endpoint URL includes the bucket or a path, else None."""
    parts = urlsplit(endpoint or "")
    if parts.path:
        return (
            f"S3_ENDPOINT_URL must not have a path ({parts.path}); the bucket belongs in TEACHER_STORAGE only"
        )
    if bucket and (parts.hostname or "").startswith(f"{bucket}."):
        return f"if {bucket} in S3_ENDPOINT_URL is the bucket, remove it; TEACHER_STORAGE already names it"
    return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

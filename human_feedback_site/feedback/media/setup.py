"""Setup and checks of the media store, for ``manage.py setup_storage``.

Each step can be repeated and returns a line that says what it found or did. A step raises
:class:`MediaStoreError` if the store can't be used.
"""

import contextlib
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import requests
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings

from human_feedback_site.environment import origin_of
from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.faults import code_of, is_starting, media_errors, status_of
from human_feedback_site.feedback.media.store import CONTENT_TYPE, FolderMedia, S3Media, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CORSRuleOutputTypeDef, CORSRuleTypeDef

_PROBE = b"written by manage.py setup_storage to see whether clips can be kept here\n"
_CORS_ID = "rl-teacher-labeling"
_RETRY_SECONDS = 1.0


def set_up(store: FolderMedia | S3Media, wait_seconds: float) -> Iterator[str]:
    """Prepare and check the store, yielding a line per step; wait for it up to ``wait_seconds``."""
    if isinstance(store, FolderMedia):
        with media_errors(f"the folder {store.root}"):
            yield _folder(store.root)
        return
    with store.errors():
        yield f"bucket: {_bucket(store, wait_seconds)}"
        yield f"objects: {_objects(store)}"
        with _probe(store) as key:
            yield f"privacy: {_privacy(store, key)}"
            yield f"links: {_links(store, key)}"
            yield f"CORS: {_cors(store, key)}"


def _folder(root: Path) -> str:
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(_PROBE)
    return f"folder: {root} can be written"


def _bucket(store: S3Media, wait_seconds: float) -> str:
    """Find or create the bucket; return the status text to print.

    If the store isn't ready, retry every ``_RETRY_SECONDS`` for up to ``wait_seconds``, on top of the S3
    client's own retries.
    """
    until = time.monotonic() + wait_seconds
    while True:
        try:
            return _find_or_make_bucket(store)
        except (BotoCoreError, ClientError) as error:
            if not is_starting(error) or time.monotonic() > until:
                raise
        time.sleep(_RETRY_SECONDS)


def _find_or_make_bucket(store: S3Media) -> str:
    try:
        store.listed("")
    except ClientError as error:
        if code_of(error) != "NoSuchBucket":
            raise
    else:
        return f"{store.bucket} exists"
    _make_bucket(store)
    store.listed("")  # fails if the bucket isn't ours or the request created something else
    return f"{store.bucket} was created"


def _make_bucket(store: S3Media) -> None:
    client, bucket = store.client, store.bucket
    region = client.meta.region_name
    elsewhere = region not in {None, "us-east-1", "aws-global"}
    try:
        if elsewhere:
            client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})  # type: ignore[typeddict-item]
        else:
            client.create_bucket(Bucket=bucket)
    except ClientError as error:  # another process has just created it
        if code_of(error) not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
            raise


def _objects(store: S3Media) -> str:
    """Check that an object can be written, listed, read and deleted; return the status text to print."""
    with _probe(store) as key:
        if store.listed(key) != [store.full(key)]:
            raise MediaStoreError(
                f"s3://{store.bucket} does not list {store.full(key)}, which was just stored; "
                "S3_ENDPOINT_URL must be the store's URL without the bucket name."
            )
        head = store.client.head_object(Bucket=store.bucket, Key=store.full(key))
        found = (head["ContentLength"], head["ContentType"])
        if found != (len(_PROBE), CONTENT_TYPE):
            raise MediaStoreError(
                f"s3://{store.bucket} did not return the test object as uploaded: expected "
                f"{len(_PROBE)} bytes of {CONTENT_TYPE}, got {found[0]} bytes of {found[1]}."
            )
    if store.readable(key):
        raise MediaStoreError(
            f"s3://{store.bucket} reported that {store.full(key)} was deleted, but still has it."
        )
    return "can be written, read and deleted"


@contextlib.contextmanager
def _probe(store: S3Media) -> Iterator[str]:
    """Create a test object, yield its key, and delete the object on exit.

    The key is not a valid clip key, so it can't collide with a clip.
    """
    key = f".setup/{uuid.uuid4()}"
    name = store.full(key)
    store.client.put_object(Bucket=store.bucket, Key=name, Body=_PROBE, ContentType=CONTENT_TYPE)
    try:
        yield key
    finally:
        store.client.delete_object(Bucket=store.bucket, Key=name)


def _privacy(store: S3Media, key: str) -> str:
    anybody = s3_client(settings.S3_ENDPOINT_URL, signature_version=UNSIGNED)
    try:
        anybody.get_object(Bucket=store.bucket, Key=store.full(key))
    except ClientError as error:
        if not 400 <= status_of(error) < 500:
            raise
        return "unsigned requests are refused"
    raise MediaStoreError(
        f"s3://{store.bucket} must be private, but anyone can read it; remove the bucket policy or access "
        "list that allows this."
    )


def _links(store: S3Media, key: str) -> str:
    """Check that browser-facing presigned URLs work and have the right expiry time."""
    if urlsplit(settings.S3_PUBLIC_ENDPOINT_URL or "").path:
        raise MediaStoreError(
            f"S3_PUBLIC_ENDPOINT_URL must not have a path, but is {settings.S3_PUBLIC_ENDPOINT_URL}: a proxy "
            "that removes the path invalidates the signatures of presigned URLs."
        )
    query = parse_qs(urlsplit(store.url(key)).query)
    if query.get("X-Amz-Expires") != [str(settings.MEDIA_LINK_SECONDS)] or "X-Amz-Signature" not in query:
        raise MediaStoreError(
            f"s3://{store.bucket}: presigned URLs must be signed and expire after "
            f"{settings.MEDIA_LINK_SECONDS} seconds, but have the query parameters {list(query)}."
        )
    answer = _fetch_by_link(store, key)
    if answer.status_code not in {200, 206} or answer.content != _PROBE:
        raise MediaStoreError(
            f"s3://{store.bucket} did not return the test object for a presigned URL at {store.origin} "
            f"(status {answer.status_code}); check S3_PUBLIC_ENDPOINT_URL."
        )
    return f"lead to {store.origin}"


def _fetch_by_link(store: S3Media, key: str, **headers: str) -> requests.Response:
    """Request a presigned URL through ``S3_ENDPOINT_URL``, the endpoint that the site itself uses.

    The ``Host`` header has the public host name, as it would if a browser sent the request.
    """
    link = urlsplit(store.url(key))
    reached = urlsplit(settings.S3_ENDPOINT_URL) if settings.S3_ENDPOINT_URL else link
    address = link._replace(scheme=reached.scheme, netloc=reached.netloc).geturl()
    return requests.get(address, headers={"Host": link.netloc, **headers}, timeout=10)


def _cors(store: S3Media, key: str) -> str:
    """Set a CORS rule that lets the labeling page's script read clips; return the status text to print.

    Some stores, such as MinIO, have no per-bucket CORS configuration, only a server-wide one.
    """
    if settings.PUBLIC_URL is None:
        return "unchanged, because TEACHER_PUBLIC_URL is not set"
    origin = origin_of(settings.PUBLIC_URL)
    try:
        _allow(store, origin)
    except ClientError as error:
        refused = f"has no CORS setting per bucket ({code_of(error)})"
    else:
        return f"pages of {origin} may read clips"
    allowed = _fetch_by_link(store, key, Origin=origin).headers.get("Access-Control-Allow-Origin")
    if allowed in {"*", origin}:
        return f"pages of {origin} may read clips; the store allows it, and {refused}"
    return (
        f"NOTICE: pages of {origin} may not read clips, and the store {refused}; "
        "allow them GET, HEAD and the Range header in the store's own settings"
    )


def _allow(store: S3Media, origin: str) -> None:
    try:
        rules = store.client.get_bucket_cors(Bucket=store.bucket).get("CORSRules", [])
    except ClientError as error:
        if code_of(error) != "NoSuchCORSConfiguration":
            raise
        rules = []
    rule: CORSRuleTypeDef = {
        "ID": _CORS_ID,
        "AllowedOrigins": [origin],
        "AllowedMethods": ["GET", "HEAD"],
        "AllowedHeaders": ["Range"],
        "ExposeHeaders": ["Accept-Ranges", "Content-Length", "Content-Range"],
        "MaxAgeSeconds": 3600,
    }
    others = [other for other in rules if other.get("ID") != _CORS_ID]
    wanted: list[CORSRuleTypeDef | CORSRuleOutputTypeDef] = [*others, rule]
    if wanted != rules:
        store.client.put_bucket_cors(Bucket=store.bucket, CORSConfiguration={"CORSRules": wanted})

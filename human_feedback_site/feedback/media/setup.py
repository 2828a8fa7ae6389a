"""Making the media store ready, and proving that it is: ``manage.py setup_storage``.

Every function may be called again and says in one line, or a few, what it found or did; where the store
cannot be used as it is, it raises :class:`MediaStoreError`.
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
from human_feedback_site.feedback.media.store import FolderMedia, S3Media, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CORSRuleOutputTypeDef, CORSRuleTypeDef

_PROBE = b"written by manage.py setup_storage to see whether clips can be kept here\n"
CONTENT_TYPE = "video/mp4"
_CORS_ID = "rl-teacher-labeling"
_RETRY_SECONDS = 1.0


def set_up(store: FolderMedia | S3Media, wait_seconds: float) -> Iterator[str]:
    """Make the store ready step by step; one that does not answer may take ``wait_seconds`` to start."""
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
    """Find the bucket or make it, waiting for a store that is starting.

    Each try is several of the client's own, with its growing, jittered pauses in between.
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
        return f"{store.bucket} is there"
    _make_bucket(store)
    store.listed("")  # is it ours, and was it a bucket that was made?
    return f"{store.bucket} is made"


def _make_bucket(store: S3Media) -> None:
    client, bucket = store.client, store.bucket
    region = client.meta.region_name
    elsewhere = region not in {None, "us-east-1", "aws-global"}
    try:
        if elsewhere:
            client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})  # type: ignore[typeddict-item]
        else:
            client.create_bucket(Bucket=bucket)
    except ClientError as error:  # somebody made it a moment ago
        if code_of(error) not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
            raise


def _objects(store: S3Media) -> str:
    """Write, list, read and delete an object."""
    with _probe(store) as key:
        if store.listed(key) != [store.full(key)]:
            raise MediaStoreError(
                f"s3://{store.bucket} must list what was stored, but does not list {store.full(key)}; "
                "S3_ENDPOINT_URL must be the store's address, without the bucket."
            )
        head = store.client.head_object(Bucket=store.bucket, Key=store.full(key))
        found = (head["ContentLength"], head["ContentType"])
        if found != (len(_PROBE), CONTENT_TYPE):
            raise MediaStoreError(
                f"s3://{store.bucket} must return what was stored, {len(_PROBE)} bytes of {CONTENT_TYPE}, "
                f"not {found[0]} bytes of {found[1]}."
            )
    if store.readable(key):
        raise MediaStoreError(f"s3://{store.bucket} must delete objects: {store.full(key)} is still there.")
    return "can be written, read and deleted"


@contextlib.contextmanager
def _probe(store: S3Media) -> Iterator[str]:
    """Keep an object in the store meanwhile; its name can be no clip's."""
    key = f".setup/{uuid.uuid4()}"
    name = store.full(key)
    store.client.put_object(Bucket=store.bucket, Key=name, Body=_PROBE, ContentType=CONTENT_TYPE)
    try:
        yield key
    finally:
        store.client.delete_object(Bucket=store.bucket, Key=name)


def _privacy(store: S3Media, key: str) -> str:
    """See that the store refuses those who come without a signature."""
    anybody = s3_client(settings.S3_ENDPOINT_URL, signature_version=UNSIGNED)
    try:
        anybody.get_object(Bucket=store.bucket, Key=store.full(key))
    except ClientError as error:
        if not 400 <= status_of(error) < 500:
            raise
        return "without a signature nothing can be read"
    raise MediaStoreError(
        f"s3://{store.bucket} must be private, but anybody can read it: remove the policy or access list "
        "that lets them."
    )


def _links(store: S3Media, key: str) -> str:
    """See that a browser's link opens the object and expires."""
    if urlsplit(settings.S3_PUBLIC_ENDPOINT_URL or "").path:
        raise MediaStoreError(
            "S3_PUBLIC_ENDPOINT_URL must have no path: a proxy that takes it out of a link breaks the link's "
            f"signature; got {settings.S3_PUBLIC_ENDPOINT_URL}."
        )
    query = parse_qs(urlsplit(store.url(key)).query)
    if query.get("X-Amz-Expires") != [str(settings.MEDIA_LINK_SECONDS)] or "X-Amz-Signature" not in query:
        raise MediaStoreError(f"Links must be signed and expire, got the parameters {', '.join(query)}.")
    answer = _fetch_by_link(store, key)
    if answer.status_code not in {200, 206} or answer.content != _PROBE:
        raise MediaStoreError(
            f"s3://{store.bucket} must open links that are signed for {store.origin}, but answers them with "
            f"status {answer.status_code}."
        )
    return f"lead to {store.origin}"


def _fetch_by_link(store: S3Media, key: str, **headers: str) -> requests.Response:
    """Open a link as a browser would, for the public host, but at the endpoint that is reached from here."""
    link = urlsplit(store.url(key))
    reached = urlsplit(settings.S3_ENDPOINT_URL) if settings.S3_ENDPOINT_URL else link
    address = link._replace(scheme=reached.scheme, netloc=reached.netloc).geturl()
    return requests.get(address, headers={"Host": link.netloc, **headers}, timeout=10)


def _cors(store: S3Media, key: str) -> str:
    """Let the labeling page's script read clips.

    Some stores, such as MinIO, know no settings of a bucket for this, only one of their own.
    """
    if settings.PUBLIC_URL is None:
        return "left as it is, for TEACHER_PUBLIC_URL is not set"
    origin = origin_of(settings.PUBLIC_URL)
    try:
        _allow(store, origin)
    except ClientError as error:
        refused = f"takes no setting of a bucket ({code_of(error)})"
    else:
        return f"pages of {origin} may read clips"
    allowed = _fetch_by_link(store, key, Origin=origin).headers.get("Access-Control-Allow-Origin")
    if allowed in {"*", origin}:
        return f"pages of {origin} may read clips; the store lets them, and {refused}"
    return (
        f"NOTICE: pages of {origin} may not read clips, and the store {refused}: "
        "allow them GET, HEAD and Range in its own settings"
    )


def _allow(store: S3Media, origin: str) -> None:
    """Add a rule to the bucket's, or bring it up to date; other rules stay."""
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

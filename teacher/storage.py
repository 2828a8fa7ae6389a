"""Clip stores: a local folder, or a bucket on Amazon S3 or an S3-compatible server."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from teacher.connections import CONNECT_SECONDS, READ_SECONDS, SEND_BUFFER, FileInBlocks
from teacher.errors import ConfigError, StorageError, one_line
from teacher.files import atomic_write

CONTENT_TYPE = "video/mp4"

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class FolderStorage:
    """Clip store in a local folder, which is created when the first clip is stored."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self._place = f"the folder {self._root}"

    def put(self, key: str, path: Path) -> None:
        """Atomically copy the file at ``path`` to ``key`` within the folder, and fsync the copy."""
        target = self._path(key)
        with _errors("store", key, self._place):
            target.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, atomic_write(target) as copied:
                shutil.copyfileobj(source, copied)

    def size(self, key: str) -> int | None:
        """Return the size in bytes of the clip ``key``, or None if there is no such clip."""
        path = self._path(key)
        with _errors("read", key, self._place), contextlib.suppress(FileNotFoundError):
            return path.stat().st_size
        return None

    def remove(self, key: str) -> None:
        """Delete the clip ``key`` if it exists, and its folder if that is now empty."""
        path = self._path(key)
        with _errors("remove", key, self._place):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def _path(self, key: str) -> Path:
        return self._root / _checked(key)


class S3Storage:
    """Clip store under a prefix of a bucket, on Amazon S3 or an S3-compatible server."""

    def __init__(self, bucket: str, prefix: str = "", endpoint_url: str | None = None) -> None:
        """Prepare a client for ``bucket`` at ``endpoint_url``; None means Amazon's endpoint."""
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = f"s3://{bucket}" + (f" at {endpoint_url}" if endpoint_url else "")
        self._client = boto3.Session().client(  # boto3's default session would keep old credentials
            "s3",
            endpoint_url=endpoint_url,
            region_name=os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            config=Config(
                signature_version="s3v4",
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": 3},
                # Virtual-hosted bucket URLs need DNS entries, which self-hosted servers rarely have.
                s3={"addressing_style": "path" if endpoint_url else "auto"},
                # S3-compatible servers don't support Amazon's newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

        # botocore has no setting for it.
        self._client._endpoint.http_session._socket_options.append(SEND_BUFFER)  # type: ignore[attr-defined]

    def put(self, key: str, path: Path) -> None:
        """Upload the file at ``path`` under ``key`` atomically: S3 never exposes a partial object."""
        name = self._prefix + _checked(key)
        with _errors("store", key, self._place), FileInBlocks(path) as body:
            self._client.put_object(Bucket=self._bucket, Key=name, Body=body, ContentType=CONTENT_TYPE)

    def size(self, key: str) -> int | None:
        """Return the size in bytes of the clip ``key``, or None if there is no such clip."""
        name = self._prefix + _checked(key)
        with _errors("read", key, self._place):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
            except ClientError as error:
                if not 400 <= error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    raise
                # A HEAD response has no body, so a missing object looks like a bad bucket, key or clock.
                # Listing the bucket raises the real error in these cases.
                self._client.list_objects_v2(Bucket=self._bucket, Prefix=name, MaxKeys=1)
                if error.response["Error"]["Code"] not in {"404", "NoSuchKey", "NotFound"}:
                    raise
                return None

    def remove(self, key: str) -> None:
        """Delete the clip ``key`` if it exists."""
        with _errors("remove", key, self._place):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + _checked(key))


Storage = FolderStorage | S3Storage
"""Clip store; keys look like ``{experiment}/{comparison uuid}/first.mp4``.

Methods raise :class:`StorageError` if a key is malformed, or the store can't be read or written.
"""


def put_verified(storage: Storage, key: str, path: Path) -> int:
    """Store a file, verify the stored size, and return the size in bytes.

    Raises:
        StorageError: the file can't be stored, or the stored size differs from the file's.
    """
    storage.put(key, path)
    expected, stored = path.stat().st_size, storage.size(key)
    if stored != expected:
        raise StorageError(
            f"the upload of {key} failed: the clip store reports a size of {stored} bytes, not {expected}"
        )
    return expected


def open_storage(url: str) -> Storage:
    """Return the clip store at ``s3://bucket/prefix`` or in a local folder, without connecting to it yet.

    Environment variables configure S3: ``S3_ENDPOINT_URL`` (default: Amazon's endpoint),
    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_DEFAULT_REGION``.

    Raises:
        ConfigError: the URL is invalid, or ``S3_ENDPOINT_URL`` includes the bucket name.
    """
    if "://" not in url:
        if not url:
            raise ConfigError("no clip store is configured; use a folder or s3://bucket/prefix")
        return FolderStorage(Path(url))
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"the clip store must be a folder or s3://bucket/prefix, not {url!r}")
    endpoint = os.environ.get("S3_ENDPOINT_URL", "").strip().rstrip("/")
    server, _, last = endpoint.rpartition("/")
    if last == parts.netloc and urlsplit(endpoint).path:
        raise ConfigError(
            f"S3_ENDPOINT_URL is {endpoint}, but must not contain the bucket, which is already in {url}; "
            f"set S3_ENDPOINT_URL to {server}"
        )
    return S3Storage(parts.netloc, parts.path.strip("/"), endpoint or None)


def _checked(key: str) -> str:
    """Return ``key`` if it is a relative path with no component that starts with a dot.

    Raises:
        StorageError: the key is malformed.
    """
    if not _KEY.fullmatch(key):
        raise StorageError(f"invalid clip key {key!r}; a valid key looks like hopper/1b4e28ba/first.mp4")
    return key


_CAUSES = {
    "SignatureDoesNotMatch": "access denied (SignatureDoesNotMatch); AWS_SECRET_ACCESS_KEY is wrong",
    "InvalidAccessKeyId": "access denied (InvalidAccessKeyId); the store does not know AWS_ACCESS_KEY_ID",
    "RequestTimeTooSkewed": "this machine's clock is wrong (RequestTimeTooSkewed); set it with NTP",
    "NoSuchBucket": "the bucket does not exist; create it first",
    "404": "the bucket does not exist; create it first",
}


@contextlib.contextmanager
def _errors(verb: str, key: str, place: str) -> Iterator[None]:
    """Convert S3 and file-system exceptions in the ``with`` block to a :class:`StorageError`.

    The error message is one line.
    """
    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        raise StorageError(f"cannot {verb} {key} in {place}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return "credentials are missing; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(error, ClientError):
        code = error.response["Error"]["Code"]
        if code in {"403", "AccessDenied"}:
            return f"access denied ({code}); check the AWS_... keys and their permissions for the bucket"
        if code in _CAUSES:
            return _CAUSES[code]
    return getattr(error, "strerror", None) or one_line(error)

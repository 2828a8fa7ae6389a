"""Clip stores: a folder, or a bucket of an S3-compatible server."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from teacher.errors import ConfigError, StorageError, one_line
from teacher.files import atomic_write

CONTENT_TYPE = "video/mp4"

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class Storage(Protocol):
    """A clip store. Keys are ``{experiment}/{comparison uuid}/first.mp4`` and ``second.mp4``."""

    def put(self, key: str, path: Path) -> None:
        """Store the file ``path`` under ``key`` atomically, replacing any earlier one.

        Raises:
            StorageError: the key is malformed, or the store cannot be written.
        """

    def size(self, key: str) -> int | None:
        """Return the size in bytes of the object ``key``, None if it does not exist.

        Raises:
            StorageError: the key is malformed, or the store cannot be read.
        """

    def remove(self, key: str) -> None:
        """Remove the object ``key`` if it exists.

        Raises:
            StorageError: the key is malformed, or the store refuses to remove it.
        """


def put_verified(storage: Storage, key: str, path: Path) -> int:
    """Store a file by :meth:`Storage.put`, check the stored size, and return it.

    Raises:
        StorageError: the file cannot be stored, or the stored size differs.
    """
    storage.put(key, path)
    expected, stored = path.stat().st_size, storage.size(key)
    if stored != expected:
        raise StorageError(f"the store holds {stored} bytes of {key}, expected {expected}")
    return expected


def open_storage(url: str) -> Storage:
    """Return the store at ``s3://bucket/prefix`` or a folder's path.

    Environment variables configure S3: ``S3_ENDPOINT_URL`` (default: Amazon's),
    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_DEFAULT_REGION``. Nothing is contacted or
    created yet.

    Raises:
        ConfigError: the URL is invalid, or ``S3_ENDPOINT_URL`` contains the bucket.
    """
    if "://" not in url:
        if not url:
            raise ConfigError("expected a folder or s3://bucket/prefix to keep clips in, got nothing")
        return FolderStorage(Path(url))
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"expected a folder or s3://bucket/prefix to keep clips in, got {url!r}")
    endpoint = os.environ.get("S3_ENDPOINT_URL", "").strip().rstrip("/")
    server, _, last = endpoint.rpartition("/")
    if last == parts.netloc and urlsplit(endpoint).path:
        raise ConfigError(
            f"expected S3_ENDPOINT_URL without the bucket, which the address {url} names, got {endpoint}; "
            f"set it to {server}"
        )
    return S3Storage(parts.netloc, parts.path.strip("/"), endpoint or None)


class FolderStorage:
    """A clip store in a folder, which is created with the first clip."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self._place = f"the folder {self._root}"

    def put(self, key: str, path: Path) -> None:
        """See :meth:`Storage.put`; file and name are synced to disk."""
        target = self._path(key)
        with _errors("store", key, self._place):
            target.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, atomic_write(target) as copied:
                shutil.copyfileobj(source, copied)

    def size(self, key: str) -> int | None:
        """See :meth:`Storage.size`."""
        path = self._path(key)
        with _errors("read", key, self._place), contextlib.suppress(FileNotFoundError):
            return path.stat().st_size
        return None

    def remove(self, key: str) -> None:
        """See :meth:`Storage.remove`; also removes the clip's folder if it is empty."""
        path = self._path(key)
        with _errors("remove", key, self._place):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def _path(self, key: str) -> Path:
        return self._root / _checked(key)


class S3Storage:
    """A clip store below a prefix in a bucket of Amazon S3 or a compatible server."""

    def __init__(self, bucket: str, prefix: str = "", endpoint_url: str | None = None) -> None:
        """Open the bucket at the server ``endpoint_url``, Amazon's if it is None."""
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = f"s3://{bucket}" + (f" at {endpoint_url}" if endpoint_url else "")
        self._client = boto3.Session().client(  # the default session would keep earlier credentials
            "s3",
            endpoint_url=endpoint_url,
            region_name=os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            config=Config(
                signature_version="s3v4",
                connect_timeout=5,
                read_timeout=30,
                retries={"mode": "standard", "total_max_attempts": 3},
                # Bucket host names need DNS entries, which self-hosted servers seldom have.
                s3={"addressing_style": "path" if endpoint_url else "auto"},
                # Servers other than Amazon's do not support its newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def put(self, key: str, path: Path) -> None:
        """See :meth:`Storage.put`; S3 shows only complete objects."""
        name = self._prefix + _checked(key)
        with _errors("store", key, self._place), path.open("rb") as body:
            self._client.put_object(Bucket=self._bucket, Key=name, Body=body, ContentType=CONTENT_TYPE)

    def size(self, key: str) -> int | None:
        """See :meth:`Storage.size`."""
        name = self._prefix + _checked(key)
        with _errors("read", key, self._place):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
            except ClientError as error:
                if not 400 <= error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    raise
                # HEAD has no body to tell a missing object from a problem of bucket, keys or clock.
                self._client.list_objects_v2(Bucket=self._bucket, Prefix=name, MaxKeys=1)
                if error.response["Error"]["Code"] not in {"404", "NoSuchKey", "NotFound"}:
                    raise
                return None

    def remove(self, key: str) -> None:
        """See :meth:`Storage.remove`."""
        with _errors("remove", key, self._place):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + _checked(key))


def _checked(key: str) -> str:
    """Return a key that stays below the root: relative, with no part that starts with a dot."""
    if not _KEY.fullmatch(key):
        raise StorageError(f"expected a key such as hopper/1b4e28ba/first.mp4, got {key!r}")
    return key


_CAUSES = {
    "SignatureDoesNotMatch": "access denied (SignatureDoesNotMatch); AWS_SECRET_ACCESS_KEY is wrong",
    "InvalidAccessKeyId": "access denied (InvalidAccessKeyId); the store does not know AWS_ACCESS_KEY_ID",
    "RequestTimeTooSkewed": "this machine's clock is wrong (RequestTimeTooSkewed); set it by NTP",
    "NoSuchBucket": "there is no such bucket; create it first",
    "404": "there is no such bucket; create it first",
}


@contextlib.contextmanager
def _errors(verb: str, key: str, place: str) -> Iterator[None]:
    """Turn exceptions of a folder or a bucket into :class:`StorageError`."""
    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        raise StorageError(f"cannot {verb} {key} in {place}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(error, ClientError):
        code = error.response["Error"]["Code"]
        if code in {"403", "AccessDenied"}:
            return f"access denied ({code}); check the keys in AWS_... and their permissions for the bucket"
        if code in _CAUSES:
            return _CAUSES[code]
    return getattr(error, "strerror", None) or one_line(error)

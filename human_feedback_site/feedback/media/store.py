"""Media stores for clips: a folder that this site serves, or an S3 bucket that browsers read directly."""

import contextlib
import errno
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, NoCredentialsError
from django.conf import settings
from django.core import signing
from django.urls import reverse

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.faults import media_errors, status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SALT = "feedback.media"
CONTENT_TYPE = "video/mp4"
MAX_KEYS = 1000  # S3's limit per list or delete request
MAX_CLIP_BYTES = 64 * 2**20  # fits the video of a whole episode; browsers and this site hold it in memory
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")


def is_key_of(experiment: str, key: str) -> bool:
    """Return True if ``key`` is a valid clip key under ``<experiment>/``."""
    return is_clip_key(key) and key.startswith(f"{experiment}/")


def is_clip_key(key: str) -> bool:
    """Return True if ``key`` is a valid clip key: ``<experiment>/<path>``.

    Every component of the key consists of letters, digits, ``_`` and ``-``. Path components may also contain
    dots, but can't start with one.
    """
    return _KEY.fullmatch(key) is not None


_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class LinkSigner:
    """Creates presigned URLs for the objects in one bucket."""

    base: str  # base URL, to which an object's key is appended
    region: str  # AWS region that the URLs are signed for
    # AWS credentials, reread for every URL because temporary credentials are refreshed hourly
    credentials: Credentials

    @classmethod
    def after(cls, example: str, key: str, credentials: Credentials) -> "LinkSigner":
        """Create a signer from ``example``, a URL that botocore presigned for ``key``."""
        address, _, query = example.partition("?")
        scope = parse_qs(query)["X-Amz-Credential"][0].split("/")
        return cls(address.removesuffix(key), scope[2], credentials)

    def link(self, key: str, seconds: int) -> str:
        """Return a presigned URL for reading ``key``, which must have only URL-safe characters."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        keys = self.credentials.get_frozen_credentials()
        parameters = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{keys.access_key}/{scope}",
            "X-Amz-Date": now,
            "X-Amz-Expires": str(seconds),
            **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
            "X-Amz-SignedHeaders": "host",
        }  # sorted by name, as the signature requires
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        address = urlsplit(self.base + key)
        is_default = address.port in {None, _DEFAULT_PORTS[address.scheme]}
        host = address.hostname if is_default else f"{address.hostname}:{address.port}"
        request = f"GET\n{address.path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        string_to_sign = "\n".join((_ALGORITHM, now, scope, hashlib.sha256(request.encode()).hexdigest()))
        signing_key = f"AWS4{keys.secret_key}".encode()
        for part in scope.split("/"):
            signing_key = hmac.digest(signing_key, part.encode(), "sha256")
        signature = hmac.digest(signing_key, string_to_sign.encode(), "sha256").hex()
        return f"{self.base}{key}?{query}&X-Amz-Signature={signature}"


class FolderMedia:
    """Clips in a local folder, which :mod:`.media.view` serves through signed links."""

    origin = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Return the resolved path of ``key``, which must be a valid clip key."""
        try:
            path = (self.root / key).resolve()
        except RuntimeError:  # a loop of symbolic links, before Python 3.13
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        if not path.is_relative_to(self.root.resolve()):
            raise FileNotFoundError(f"{key!r} is outside the media folder.")
        return path

    def readable(self, key: str) -> bool:
        """Return True if ``key`` refers to a regular file of between 1 and ``MAX_CLIP_BYTES`` bytes."""
        with media_errors(f"the folder {self.root}"):
            try:
                found = self.path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:  # a name too long for the file system can't exist
                    raise
                return False
            return stat.S_ISREG(found.st_mode) and 0 < found.st_size <= MAX_CLIP_BYTES

    def url(self, key: str) -> str:
        """Return a signed link to this site's media view."""
        return reverse("media", args=[signing.dumps(key, salt=_SALT)])

    def path_of_link(self, token: str) -> Path:
        """Return the path of a signed link's clip, or raise BadSignature or FileNotFoundError."""
        key = signing.loads(token, salt=_SALT, max_age=settings.MEDIA_LINK_SECONDS)
        if not self.readable(key):
            raise FileNotFoundError(f"{key!r} no longer exists.")
        return self.path(key)

    def keys(self, experiment: str) -> list[str]:
        """Return up to ``MAX_KEYS`` keys of an experiment's files, without following symbolic links."""
        with media_errors(f"the folder {self.root}"):
            found = islice(self._files_of(experiment), MAX_KEYS)
            return [path.relative_to(self.root).as_posix() for path in found]

    def count(self, experiment: str, most: int) -> int:
        """Count an experiment's files, stopping at ``most``."""
        with media_errors(f"the folder {self.root}"):
            return sum(1 for _ in islice(self._files_of(experiment), most))

    def _files_of(self, experiment: str) -> Iterator[Path]:
        folder = self.root / _prefix_of(experiment)
        self.root.stat()  # raises if the folder's disk is not mounted, instead of reporting no clips
        if folder.is_symlink():
            raise MediaStoreError(f"{folder} must be a real folder, not a symbolic link.")
        return _files(folder)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files, and folders that become empty."""
        with media_errors(f"the folder {self.root}"):
            for key in keys:
                (self.root / key).unlink(missing_ok=True)
        for folder in {Path(key).parent for key in keys}:
            for parent in (folder, *folder.parents[:-1]):  # the last is the root
                with contextlib.suppress(OSError):
                    (self.root / parent).rmdir()


class S3Media:
    """Clips in an S3 bucket; browsers read them through presigned URLs for the public endpoint."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._probe_client: S3Client | None = None
        self.bucket = parts.netloc
        self.prefix = parts.path.strip("/")

    @property
    def address(self) -> str:
        """URL of the store, ``s3://bucket/prefix``, as in ``TEACHER_STORAGE``."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @cached_property
    def client(self) -> "S3Client":
        """S3 client for ``S3_ENDPOINT_URL``, the endpoint that the site can reach."""
        return s3_client(settings.S3_ENDPOINT_URL)

    @cached_property
    def _signer(self) -> LinkSigner:
        example = self._link(s3_client(settings.S3_PUBLIC_ENDPOINT_URL), "x")
        credentials = botocore.session.get_session().get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return LinkSigner.after(example, self.full("x"), credentials)

    @cached_property
    def origin(self) -> str:
        """Origin of all clip URLs, found without AWS credentials."""
        with self.errors():
            link = self._link(s3_client(settings.S3_PUBLIC_ENDPOINT_URL, signature_version=UNSIGNED), "x")
        parts = urlsplit(link)
        return f"{parts.scheme}://{parts.netloc}"

    def readable(self, key: str) -> bool:
        """Return True if the object exists and is between 1 and ``MAX_CLIP_BYTES`` bytes in size."""
        with self.errors():
            try:
                head = self.client.head_object(Bucket=self.bucket, Key=self.full(key))
            except ClientError as error:
                if not 400 <= status_of(error) < 500:
                    raise
                # A HEAD response doesn't say if the object, the bucket or the AWS keys are at fault.
                self.listed(key)
                if status_of(error) != 404:
                    raise
                return False
            return 0 < head["ContentLength"] <= MAX_CLIP_BYTES

    def url(self, key: str) -> str:
        """Return a presigned URL for the public endpoint."""
        with self.errors():
            return self._signer.link(self.full(key), settings.MEDIA_LINK_SECONDS)

    def probe(self, seconds: float) -> None:
        """Raise :class:`MediaStoreError` if the bucket can't be listed within about ``seconds``."""
        with self.errors():
            if self._probe_client is None:
                limits: dict[str, Any] = {"connect_timeout": seconds, "read_timeout": seconds}
                self._probe_client = s3_client(
                    settings.S3_ENDPOINT_URL, retries={"total_max_attempts": 1}, **limits
                )
            self._probe_client.list_objects_v2(Bucket=self.bucket, Prefix=self.full(""), MaxKeys=1)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that re-raises botocore and OS errors as :class:`MediaStoreError`."""
        endpoint = settings.S3_ENDPOINT_URL
        place = f"s3://{self.bucket}" + (f" at {endpoint}" if endpoint else "")
        return media_errors(place, self.bucket, endpoint)

    def listed(self, prefix: str, most: int = 1) -> list[str]:
        """Return the full S3 keys of up to ``most`` objects whose clip keys start with ``prefix``."""
        begins = self.full(prefix)
        page = self.client.list_objects_v2(Bucket=self.bucket, Prefix=begins, MaxKeys=most)
        return [item["Key"] for item in page.get("Contents", ())]

    def _link(self, client: "S3Client", key: str) -> str:
        return client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self.bucket, "Key": self.full(key)},
            ExpiresIn=settings.MEDIA_LINK_SECONDS,
        )

    def keys(self, experiment: str) -> list[str]:
        """Return up to ``MAX_KEYS`` keys of an experiment's objects."""
        prefix = self.full(_prefix_of(experiment))
        with self.errors():
            found = self.listed(_prefix_of(experiment), MAX_KEYS)
        if not all(key.startswith(prefix) for key in found):
            raise MediaStoreError(
                f"s3://{self.bucket} listed objects whose keys don't start with {prefix}; "
                "nothing was deleted."
            )
        return [key.removeprefix(self.full("")) for key in found]

    def count(self, experiment: str, most: int) -> int:
        """Count an experiment's objects, stopping at ``most``."""
        with self.errors():
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket,
                Prefix=self.full(_prefix_of(experiment)),
                PaginationConfig={"MaxItems": most, "PageSize": MAX_KEYS},
            )
            return sum(len(page.get("Contents", ())) for page in pages)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete up to ``MAX_KEYS`` objects in one request."""
        with self.errors():
            reply = self.client.delete_objects(
                Bucket=self.bucket,
                Delete={"Objects": [{"Key": self.full(key)} for key in keys], "Quiet": True},
            )
        refused = reply.get("Errors", [])
        if refused:
            reason = refused[0].get("Message") or refused[0].get("Code")
            raise MediaStoreError(
                f"s3://{self.bucket} refused to delete {len(refused)} of {len(keys)} objects: {reason}"
            )

    def full(self, key: str) -> str:
        """Return the object's full S3 key: the store's prefix followed by ``key``."""
        return f"{self.prefix}/{key}" if self.prefix else key


def media_store() -> FolderMedia | S3Media:
    """Return the media store configured in ``TEACHER_STORAGE``; cached for each value of the setting."""
    return _open(settings.TEACHER_STORAGE)


def name_of(store: FolderMedia | S3Media) -> str:
    """Return a display name for the store, to use in messages: the folder path or the S3 URL."""
    return f"the folder {store.root}" if isinstance(store, FolderMedia) else store.address


@cache
def _open(url: str) -> FolderMedia | S3Media:
    return S3Media(url) if url.startswith("s3://") else FolderMedia(Path(url))


def s3_client(endpoint: str | None, **options: Any) -> "S3Client":
    """Return an S3 client for an endpoint URL."""
    config = Config(
        # Bucket names as host names need DNS entries, which self-hosted servers rarely have.
        s3={"addressing_style": "path" if endpoint else "auto"},
        # Servers other than Amazon's don't support its newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **{
            "signature_version": "s3v4",
            "connect_timeout": 5,
            "read_timeout": 10,
            # "standard" retries with exponential backoff and jitter.
            "retries": {"mode": "standard", "total_max_attempts": 3},
            **options,
        },
    )
    # A new session, because the default one would keep the credentials of earlier settings.
    session = botocore.session.get_session()
    session.register_component("data_loader", _service_models())
    client: S3Client = session.create_client("s3", endpoint_url=endpoint, config=config)  # type: ignore[assignment]
    return client


@cache
def _service_models() -> Any:
    """Return botocore's service model loader, cached because reading the models is slow."""
    return botocore.session.get_session().get_component("data_loader")


def _prefix_of(experiment: str) -> str:
    if not _NAME.fullmatch(experiment):
        raise ValueError(f"{experiment!r} is not a valid experiment name.")
    return f"{experiment}/"


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files and symbolic links below a folder, without following symbolic links to folders."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # another process may have deleted it meanwhile
            raise error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        links = (name for name in folders if Path(parent, name).is_symlink())
        yield from (Path(parent, name) for name in (*files, *links))

"""Where clips are read from: a folder this site serves itself, or an S3 store that serves them."""

import re
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from django.conf import settings
from django.core import signing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SALT = "feedback.media"
_KEY = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")


def is_key_of(experiment: str, key: str) -> bool:
    """Say whether ``key`` is a plain object key under the experiment's prefix."""
    return _KEY.fullmatch(key) is not None and key.startswith(f"{experiment}/")


class MediaStore(Protocol):
    """What the site needs of a media store."""

    @property
    def origin(self) -> str | None:
        """``scheme://host[:port]`` that serves the clips; None where this site does."""

    def readable(self, key: str) -> bool:
        """Say whether the object exists and is not empty."""

    def url(self, key: str) -> str:
        """Return a link to the object that expires after ``MEDIA_LINK_SECONDS``."""


class FolderMedia:
    """Clips in a folder, served by :mod:`.media_view` to whoever holds a signed link."""

    origin = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Return where ``key`` is; it was checked when it was registered, and may not leave the folder."""
        path = (self.root / key).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise ValueError(f"{key!r} is outside the media folder.")
        return path

    def readable(self, key: str) -> bool:
        """Say whether the file exists and is not empty."""
        path = self.path(key)
        return path.is_file() and path.stat().st_size > 0

    def url(self, key: str) -> str:
        """Return a link on this site."""
        return f"/media/{signing.dumps(key, salt=_SALT)}"

    def path_of_link(self, token: str) -> Path:
        """Return the file behind a link; raises ``signing.BadSignature`` for a forged or old one."""
        return self.path(signing.loads(token, salt=_SALT, max_age=settings.MEDIA_LINK_SECONDS))


class S3Media:
    """Clips in an S3 bucket; links are presigned for the endpoint that browsers can reach."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.bucket = parts.netloc
        self.prefix = parts.path.strip("/")

    @cached_property
    def _client(self) -> "S3Client":
        return _s3_client(settings.S3_ENDPOINT_URL)

    @cached_property
    def _public_client(self) -> "S3Client":
        return _s3_client(settings.S3_PUBLIC_ENDPOINT_URL)

    @cached_property
    def origin(self) -> str:
        """The origin of every link, taken from one."""
        parts = urlsplit(self.url("x"))
        return f"{parts.scheme}://{parts.netloc}"

    def readable(self, key: str) -> bool:
        """Say whether the object exists and is not empty."""
        try:
            head = self._client.head_object(Bucket=self.bucket, Key=self._full(key))
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in {403, 404}:
                return False
            raise
        return head["ContentLength"] > 0

    def url(self, key: str) -> str:
        """Return a presigned link for the public endpoint."""
        return self._public_client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self.bucket, "Key": self._full(key)},
            ExpiresIn=settings.MEDIA_LINK_SECONDS,
        )

    def _full(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


def media_store() -> FolderMedia | S3Media:
    """Return the store that ``TEACHER_STORAGE`` names."""
    return _open(settings.TEACHER_STORAGE)


@cache
def _open(url: str) -> FolderMedia | S3Media:
    return S3Media(url) if url.startswith("s3://") else FolderMedia(Path(url))


def _s3_client(endpoint: str | None) -> "S3Client":
    config = Config(
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=10,
        retries={"mode": "standard", "total_max_attempts": 3},
        # Buckets as host names need DNS that a server of one's own seldom has.
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    return boto3.client("s3", endpoint_url=endpoint, config=config)

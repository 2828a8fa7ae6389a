"""Where clips are read from: a folder this site serves itself, or an S3 store that serves them."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, NoCredentialsError
from django.conf import settings
from django.core import signing
from django.urls import reverse

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.faults import media_errors, status_of
from human_feedback_site.feedback.media.links import LinkSigner

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SALT = "feedback.media"
MAX_KEYS = 1000  # that S3 lists or deletes in one request
MAX_CLIP_BYTES = 64 * 2**20  # of a film of a whole episode; browsers and this site hold it in memory
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")


def is_key_of(experiment: str, key: str) -> bool:
    """Say whether ``key`` is a plain object key under the experiment's prefix."""
    return is_clip_key(key) and key.startswith(f"{experiment}/")


def is_clip_key(key: str) -> bool:
    """Say whether ``key`` is a plain object key under any experiment's prefix."""
    return _KEY.fullmatch(key) is not None


class MediaStore(Protocol):
    """What the site needs of a media store."""

    @property
    def origin(self) -> str | None:
        """``scheme://host[:port]`` that serves the clips; None where this site does."""

    def readable(self, key: str) -> bool:
        """Say whether the object exists, and is neither empty nor larger than ``MAX_CLIP_BYTES``.

        Raises :class:`MediaStoreError` where that cannot be known.
        """

    def url(self, key: str) -> str:
        """Return a link to the object that expires after ``MEDIA_LINK_SECONDS``.

        Raises :class:`MediaStoreError`.
        """

    def keys(self, experiment: str) -> list[str]:
        """Return up to ``MAX_KEYS`` keys of what is stored for an experiment, in no order.

        Raises :class:`MediaStoreError`.
        """

    def count(self, experiment: str, most: int) -> int:
        """Count what is stored for an experiment, and no further than ``most``.

        Raises :class:`MediaStoreError`.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete up to ``MAX_KEYS`` objects; those that are gone already do not matter.

        Raises :class:`MediaStoreError`.
        """


class FolderMedia:
    """Clips in a folder, served by :mod:`.media_view` to whoever holds a signed link."""

    origin = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Return where ``key`` is, which was checked when it was registered.

        Raises :class:`FileNotFoundError` where a link leads out of the folder.
        """
        try:
            path = (self.root / key).resolve()
        except RuntimeError:  # before Python 3.13, for a loop of links
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        if not path.is_relative_to(self.root.resolve()):
            raise FileNotFoundError(f"{key!r} is outside the media folder.")
        return path

    def readable(self, key: str) -> bool:
        """Say whether it is a file of a size that a clip may have."""
        with media_errors(f"the folder {self.root}"):
            try:
                found = self.path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:  # what cannot be there is not
                    raise
                return False
            return stat.S_ISREG(found.st_mode) and 0 < found.st_size <= MAX_CLIP_BYTES

    def url(self, key: str) -> str:
        """Return a link on this site."""
        return reverse("media", args=[signing.dumps(key, salt=_SALT)])

    def path_of_link(self, token: str) -> Path:
        """Return the file behind a link.

        Raises ``signing.BadSignature`` for a forged or old one, :class:`FileNotFoundError` where the clip is
        gone, or is none any more.
        """
        key = signing.loads(token, salt=_SALT, max_age=settings.MEDIA_LINK_SECONDS)
        if not self.readable(key):
            raise FileNotFoundError(f"{key!r} is gone.")
        return self.path(key)

    def keys(self, experiment: str) -> list[str]:
        """Return up to ``MAX_KEYS`` keys of files of an experiment; a link to a folder is not followed."""
        with media_errors(f"the folder {self.root}"):
            found = islice(self._files_of(experiment), MAX_KEYS)
            return [path.relative_to(self.root).as_posix() for path in found]

    def count(self, experiment: str, most: int) -> int:
        """Count files of an experiment."""
        with media_errors(f"the folder {self.root}"):
            return sum(1 for _ in islice(self._files_of(experiment), most))

    def _files_of(self, experiment: str) -> Iterator[Path]:
        folder = self.root / _prefix_of(experiment)
        self.root.stat()  # a disk that is not mounted holds clips, too
        if folder.is_symlink():
            raise MediaStoreError(f"{folder} must be a folder, not a link to one.")
        return _files(folder)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files, and the folders that they leave empty."""
        with media_errors(f"the folder {self.root}"):
            for key in keys:
                (self.root / key).unlink(missing_ok=True)
        for folder in {Path(key).parent for key in keys}:
            for parent in (folder, *folder.parents[:-1]):  # the last is the root
                with contextlib.suppress(OSError):
                    (self.root / parent).rmdir()


class S3Media:
    """Clips in an S3 bucket; links are presigned for the endpoint that browsers can reach."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.bucket = parts.netloc
        self.prefix = parts.path.strip("/")

    @property
    def address(self) -> str:
        """``s3://bucket/prefix``, as ``TEACHER_STORAGE`` names it."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @cached_property
    def client(self) -> "S3Client":
        """A client of the endpoint that the site reaches."""
        return s3_client(settings.S3_ENDPOINT_URL)

    @cached_property
    def _signer(self) -> LinkSigner:
        """Signs links for the public endpoint; raises botocore's error where there are no keys."""
        example = self._link(s3_client(settings.S3_PUBLIC_ENDPOINT_URL), "x")
        credentials = botocore.session.get_session().get_credentials()
        if credentials is None:
            raise NoCredentialsError
        return LinkSigner.after(example, self.full("x"), credentials)

    @cached_property
    def origin(self) -> str:
        """The origin of every link, taken from one without a signature, which needs no keys."""
        with self.errors():
            link = self._link(s3_client(settings.S3_PUBLIC_ENDPOINT_URL, signature_version=UNSIGNED), "x")
        parts = urlsplit(link)
        return f"{parts.scheme}://{parts.netloc}"

    def readable(self, key: str) -> bool:
        """Say whether the object exists and has a size that a clip may have."""
        with self.errors():
            try:
                head = self.client.head_object(Bucket=self.bucket, Key=self.full(key))
            except ClientError as error:
                if not 400 <= status_of(error) < 500:
                    raise
                self.listed(
                    key
                )  # an answer to HEAD cannot say whether it is the object, the bucket or the keys
                if status_of(error) != 404:
                    raise
                return False
            return 0 < head["ContentLength"] <= MAX_CLIP_BYTES

    def url(self, key: str) -> str:
        """Return a presigned link for the public endpoint."""
        with self.errors():
            return self._signer.link(self.full(key), settings.MEDIA_LINK_SECONDS)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turn what goes wrong in here into :class:`MediaStoreError`, which names this store."""
        endpoint = settings.S3_ENDPOINT_URL
        place = f"s3://{self.bucket}" + (f" at {endpoint}" if endpoint else "")
        return media_errors(place, self.bucket, endpoint)

    def listed(self, prefix: str, most: int = 1) -> list[str]:
        """Return the bucket's names of up to ``most`` objects below a prefix; raises botocore's errors."""
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
        """Return up to ``MAX_KEYS`` keys of objects of an experiment."""
        prefix = self.full(_prefix_of(experiment))
        with self.errors():
            found = self.listed(_prefix_of(experiment), MAX_KEYS)
        if not all(key.startswith(prefix) for key in found):
            raise MediaStoreError(f"s3://{self.bucket} lists more than was asked for; nothing is deleted.")
        return [key.removeprefix(self.full("")) for key in found]

    def count(self, experiment: str, most: int) -> int:
        """Count objects of an experiment."""
        with self.errors():
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket,
                Prefix=self.full(_prefix_of(experiment)),
                PaginationConfig={"MaxItems": most, "PageSize": MAX_KEYS},
            )
            return sum(len(page.get("Contents", ())) for page in pages)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in one request."""
        with self.errors():
            reply = self.client.delete_objects(
                Bucket=self.bucket,
                Delete={"Objects": [{"Key": self.full(key)} for key in keys], "Quiet": True},
            )
        refused = reply.get("Errors", [])
        if refused:
            reason = refused[0].get("Message") or refused[0].get("Code")
            raise MediaStoreError(f"s3://{self.bucket} keeps {len(refused)} of {len(keys)} objects: {reason}")

    def full(self, key: str) -> str:
        """Return the key as the bucket knows it."""
        return f"{self.prefix}/{key}" if self.prefix else key


def media_store() -> FolderMedia | S3Media:
    """Return the store that ``TEACHER_STORAGE`` names."""
    return _open(settings.TEACHER_STORAGE)


def name_of(store: FolderMedia | S3Media) -> str:
    """Return the store as its settings name it."""
    return f"the folder {store.root}" if isinstance(store, FolderMedia) else store.address


@cache
def _open(url: str) -> FolderMedia | S3Media:
    return S3Media(url) if url.startswith("s3://") else FolderMedia(Path(url))


def s3_client(endpoint: str | None, **options: Any) -> "S3Client":
    """Return a client of ``endpoint``, Amazon's where it is None; ``options`` are more of botocore's."""
    config = Config(
        connect_timeout=5,
        read_timeout=10,
        # "standard" waits longer from try to try, by a random share so that clients do not come in step.
        retries={"mode": "standard", "total_max_attempts": 3},
        # Buckets as host names need DNS that a server of one's own seldom has.
        s3={"addressing_style": "path" if endpoint else "auto"},
        # Servers that are not Amazon's know nothing of its newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **{"signature_version": "s3v4", **options},
    )
    # A session of its own: the default one would keep the credentials of earlier settings.
    session = botocore.session.get_session()
    session.register_component("data_loader", _service_models())
    client: S3Client = session.create_client("s3", endpoint_url=endpoint, config=config)  # type: ignore[assignment]
    return client


@cache
def _service_models() -> Any:
    """Return botocore's loader of service descriptions, which keeps what it has read; reading is slow."""
    return botocore.session.get_session().get_component("data_loader")


def _prefix_of(experiment: str) -> str:
    """Return what the keys of an experiment begin with, and those of no other."""
    if not _NAME.fullmatch(experiment):
        raise ValueError(f"{experiment!r} is no name of an experiment.")
    return f"{experiment}/"


def _files(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder and those below it, but no folders; links are not followed."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # what another process deletes meanwhile is as wanted
            raise error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        links = (name for name in folders if Path(parent, name).is_symlink())
        yield from (Path(parent, name) for name in (*files, *links))

"""Backup and restore of the media store, as a folder with one file per clip."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from botocore.exceptions import ClientError

from human_feedback_site.feedback.errors import BackupError
from human_feedback_site.feedback.media.faults import media_errors, status_of
from human_feedback_site.feedback.media.setup import set_up
from human_feedback_site.feedback.media.store import CONTENT_TYPE, FolderMedia, S3Media, is_clip_key, name_of

Store = FolderMedia | S3Media


def copy_clips(store: Store, folder: Path) -> set[str]:
    """Copy all clips from the store to a folder, check their sizes, and return their keys."""
    copied = set()
    with media_errors(name_of(store)):
        for key, size in _clips_in(store):
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _fetch(store, key, path)
            except FileNotFoundError:  # deleted in the meantime, because the clip expired
                continue
            if path.stat().st_size != size:
                raise BackupError(
                    f"{name_of(store)}: the copy of {key} has {path.stat().st_size} bytes instead of {size}; "
                    "try again"
                )
            copied.add(key)
    return copied


def check_room_for_clips(store: Store, folder: Path) -> None:
    """Raise BackupError if the store has a clip that isn't in the backup or has a different size there.

    Clips left by an interrupted restore are accepted, and so is a bucket that doesn't exist yet.
    """
    with media_errors(name_of(store)):
        for key, size in _clips_in(store):
            path = folder / key
            if not path.is_file() or path.stat().st_size != size:
                raise BackupError(
                    f"{name_of(store)} must not contain any clips, but contains {key}; empty it first"
                )


def restore_clips(store: Store, folder: Path) -> int:
    """Prepare the store, upload all clips in the backup, check their sizes, and return the clip count."""
    for _ in set_up(store, wait_seconds=60.0):
        pass
    wanted = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    with media_errors(name_of(store)):
        for key, path in wanted.items():
            _put(store, key, path)
        stored = dict(_clips_in(store))
    for key, path in wanted.items():
        if stored.get(key) != path.stat().st_size:
            raise BackupError(f"{name_of(store)} did not store {key} completely; try again")
    return len(wanted)


def _clips_in(store: Store) -> Iterator[tuple[str, int]]:
    """Yield the key and size of every clip in the store; skip other files, such as unfinished uploads."""
    objects = _files_of(store.root) if isinstance(store, FolderMedia) else _objects_of(store)
    return ((key, size) for key, size in objects if is_clip_key(key))


def _files_of(root: Path) -> Iterator[tuple[str, int]]:
    for path in root.rglob("*"):
        if path.is_file():
            yield path.relative_to(root).as_posix(), path.stat().st_size


def _objects_of(store: S3Media) -> Iterator[tuple[str, int]]:
    prefix = store.full("")
    pages = store.client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=prefix)
    try:
        for page in pages:
            for item in page.get("Contents", ()):
                yield item["Key"].removeprefix(prefix), item["Size"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchBucket":
            raise


def _fetch(store: Store, key: str, path: Path) -> None:
    if isinstance(store, FolderMedia):
        shutil.copyfile(store.root / key, path)
        return
    try:
        body = store.client.get_object(Bucket=store.bucket, Key=store.full(key))["Body"]
    except ClientError as error:
        if status_of(error) == 404:
            raise FileNotFoundError(key) from None
        raise
    with path.open("wb") as file, contextlib.closing(body):
        shutil.copyfileobj(body, file)


def _put(store: Store, key: str, path: Path) -> None:
    if isinstance(store, FolderMedia):
        target = store.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        shutil.copyfile(path, part)
        part.replace(target)
        return
    with path.open("rb") as body:
        name = store.full(key)
        store.client.put_object(Bucket=store.bucket, Key=name, Body=body, ContentType=CONTENT_TYPE)

"""Clips reach those who hold a fresh link, whole or in parts, from a folder or from S3."""

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import boto3
import pytest
import requests
from django.core import signing
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.store import (
    MAX_CLIP_BYTES,
    FolderMedia,
    S3Media,
    media_store,
    s3_client,
)
from tests.conftest import S3Server
from tests.site.conftest import Browser, Trainer

CLIP = bytes(range(200))
KEY = "hopper/1/first.mp4"


@pytest.fixture
def link(media_folder: Path) -> str:
    path = media_folder / KEY
    path.parent.mkdir(parents=True)
    path.write_bytes(CLIP)
    return media_store().url(KEY)


def test_a_link_serves_its_clip(client: Client, link: str) -> None:
    response = client.get(link)
    assert (response.status_code, response.getvalue()) == (200, CLIP)
    assert response["Content-Type"] == "video/mp4"
    assert response["Accept-Ranges"] == "bytes"
    assert response["Cache-Control"].startswith("private")


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-", 0, 199),
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=190-", 190, 199),
        ("bytes=190-1000", 190, 199),
        ("bytes=-10", 190, 199),
        ("bytes=-1000", 0, 199),
    ],
)
def test_a_range_is_served(client: Client, link: str, asked: str, first: int, last: int) -> None:
    response = client.get(link, headers={"Range": asked})
    assert response.status_code == 206
    assert response["Content-Range"] == f"bytes {first}-{last}/200"
    assert response["Content-Length"] == str(last - first + 1)
    assert response.getvalue() == CLIP[first : last + 1]


@pytest.mark.parametrize("asked", ["bytes=200-", "bytes=5-4", "bytes=-0"])
def test_unsatisfiable_range_is_refused(client: Client, link: str, asked: str) -> None:
    response = client.get(link, headers={"Range": asked})
    assert response.status_code == 416
    assert response["Content-Range"] == "bytes */200"


@pytest.mark.parametrize(
    "asked", ["bytes=-", "bytes=0-1,4-5", "lines=1-2", "bytes=a-b", "bytes=0-" + "9" * 5000]
)
def test_other_ranges_get_the_whole_clip(client: Client, link: str, asked: str) -> None:
    response = client.get(link, headers={"Range": asked})
    assert (response.status_code, response.getvalue()) == (200, CLIP)


@pytest.mark.parametrize("asked", [None, "bytes=0-9", "bytes=900-"])
def test_a_head_request_tells_the_size_of_the_whole(client: Client, link: str, asked: str | None) -> None:
    response = client.head(link, headers={"Range": asked} if asked else None)
    assert (response.status_code, response["Content-Length"], response.getvalue()) == (200, "200", b"")


def test_clips_cannot_be_written(client: Client, link: str) -> None:
    assert client.post(link).status_code == 405


def test_links_expire(client: Client, link: str, settings: Settings) -> None:
    settings.MEDIA_LINK_SECONDS = -1
    assert client.get(link).status_code == 404


def test_forged_links_serve_nothing(client: Client, link: str) -> None:
    other = signing.dumps(KEY, salt="something else")
    for forged in (link[:-1], link + "x", f"/media/{other}", f"/media/{KEY}", "/media/x"):
        assert client.get(forged).status_code == 404


def test_missing_clip_is_reported(client: Client, link: str, media_folder: Path) -> None:
    (media_folder / KEY).unlink()
    assert client.get(link).status_code == 404


@pytest.mark.parametrize("key", ["../secret", "/etc/passwd", "a/../../secret", "a/link"])
def test_no_key_leaves_the_folder(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "media" / "a").mkdir(parents=True)
    (tmp_path / "media" / "a" / "link").symlink_to(tmp_path / "secret")
    store = FolderMedia(tmp_path / "media")
    assert not store.readable(key)
    with pytest.raises(FileNotFoundError):
        store.path_of_link(store.url(key).removeprefix("/media/"))


def test_clips_too_large_for_memory_are_refused(client: Client, link: str, media_folder: Path) -> None:
    store, clip = FolderMedia(media_folder), media_folder / KEY
    for size, expected in ((MAX_CLIP_BYTES, True), (MAX_CLIP_BYTES + 1, False)):
        os.truncate(clip, size)
        assert store.readable(KEY) is expected
    assert client.get(link).status_code == 404


@pytest.fixture
def s3(s3_server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Clips in an S3 server; returns a client that may write there."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    settings.S3_ENDPOINT_URL = s3_server.endpoint_url
    settings.S3_PUBLIC_ENDPOINT_URL = s3_server.endpoint_url.replace("127.0.0.1", "localhost")
    settings.TEACHER_STORAGE = f"s3://{s3_server.bucket}/some/prefix"
    return boto3.client("s3", endpoint_url=s3_server.endpoint_url)


def test_s3_clips_are_served_by_the_store_at_its_public_address(s3: Any) -> None:
    s3.put_object(Bucket="clips", Key=f"some/prefix/{KEY}", Body=CLIP, ContentType="video/mp4")
    store = S3Media("s3://clips/some/prefix")
    assert store.readable(KEY)
    link = store.url(KEY)
    assert f"http://{urlsplit(link).netloc}" == store.origin
    assert store.origin.startswith("http://localhost:")
    assert requests.get(link, timeout=60).content == CLIP
    assert not requests.get(link.split("?", maxsplit=1)[0], timeout=60).ok


@pytest.mark.parametrize("endpoint", [None, "https://clips.example.org"])
def test_link_origin_needs_no_keys(
    s3: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str | None
) -> None:
    settings.S3_PUBLIC_ENDPOINT_URL = endpoint
    signed = urlsplit(S3Media("s3://clips").url(KEY))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert S3Media("s3://clips").origin == f"{signed.scheme}://{signed.netloc}"


@pytest.mark.parametrize(
    "endpoint", [None, "https://clips.example.org", "https://clips.example.org:443", "http://127.0.0.1:9000"]
)
@pytest.mark.parametrize("token", [None, "a+temporary/token=="])
def test_links_are_signed_like_botocores(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, token: str | None
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "teacher-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "teacher/secret+key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    settings.S3_PUBLIC_ENDPOINT_URL = endpoint
    store = S3Media("s3://clips/some/prefix")
    ours, theirs = urlsplit(store.url(KEY)), urlsplit("")
    while parse_qs(ours.query).get("X-Amz-Date") != parse_qs(theirs.query).get("X-Amz-Date"):
        theirs = urlsplit(store._link(s3_client(endpoint), KEY))
        ours = urlsplit(store.url(KEY))  # until both were signed in the same second
    assert ours[:3] == theirs[:3]
    assert parse_qs(ours.query) == parse_qs(theirs.query)
    assert ("X-Amz-Security-Token" in parse_qs(ours.query)) == (token is not None)


def test_failing_store_tried_thrice(s3: Any, settings: Settings, stumbling: tuple[str, list[str]]) -> None:
    settings.S3_ENDPOINT_URL, asked = stumbling
    store = S3Media("s3://clips")
    retries = store.client.meta.config.retries  # type: ignore[attr-defined]
    assert (retries["mode"], retries["total_max_attempts"]) == ("standard", 3)
    with pytest.raises(MediaStoreError, match="503"):
        store.readable(KEY)
    assert len(asked) == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_registering_while_the_store_is_away_is_retried(
    trainer: Trainer,
    s3: Any,
    settings: Settings,
    stumbling: tuple[str, list[str]],
    free_port: Callable[[], int],
    is_there: bool,
) -> None:
    clips = {side: {"key": f"hopper/{side}.mp4", "true_return": 1.0} for side in ("first", "second")}
    pair = {"uuid": str(uuid4()), "phase": "training", "step": 0, "priority": 0, **clips}
    settings.TEACHER_STORAGE = f"s3://clips/away/{is_there}"  # a store is opened once for each address
    settings.S3_ENDPOINT_URL = stumbling[0] if is_there else f"http://127.0.0.1:{free_port()}"
    answer = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [pair]})
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: " in answer.content.decode()


@pytest.fixture
def stumbling() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that is not ready for any request, and what it was asked."""
    asked: list[str] = []

    class Unready(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Unready) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_missing_and_empty_s3_clips_are_not_readable(s3: Any) -> None:
    s3.put_object(Bucket="clips", Key="some/prefix/hopper/empty.mp4", Body=b"")
    store = media_store()
    assert not store.readable("hopper/empty.mp4")
    assert not store.readable("hopper/missing.mp4")
    assert not store.readable(f"hopper/{300 * 'x'}")  # longer than a file may be called


def test_comparisons_with_s3_clips_are_leased(
    trainer: Trainer, browser: Browser, s3: Any, media_folder: Path, settings: Settings
) -> None:
    in_s3, settings.TEACHER_STORAGE = settings.TEACHER_STORAGE, str(media_folder)
    comparison = trainer.comparison()
    settings.TEACHER_STORAGE = in_s3
    body = {"comparisons": [comparison]}
    assert trainer.send("POST", f"{trainer.path}/comparisons", body).status_code == 422
    for side in ("first", "second"):
        s3.put_object(Bucket="clips", Key=f"some/prefix/{comparison[side]['key']}", Body=CLIP)
    trainer.post(f"{trainer.path}/comparisons", body)
    [lease] = browser.lease()
    assert requests.get(lease["left"]["url"], timeout=60).content == CLIP


def test_s3_links_do_not_work_here(client: Client, link: str, s3: Any) -> None:
    assert client.get(link).status_code == 404


@pytest.mark.parametrize(
    ("url", "full"),
    [("s3://clips", "a/b.mp4"), ("s3://clips/", "a/b.mp4"), ("s3://clips/p/q/", "p/q/a/b.mp4")],
)
def test_the_prefix_of_the_storage_is_kept(s3: Any, url: str, full: str) -> None:
    assert urlsplit(S3Media(url).url("a/b.mp4")).path == f"/clips/{full}"


def test_s3_is_allowed_by_the_policy(client: Client, s3: Any, db: None, side_of: Callable[..., str]) -> None:
    policy = client.get("/accounts/login/")["Content-Security-Policy"]
    origin = media_store().origin
    assert f"media-src 'self' blob: {origin};" in policy
    assert f"connect-src 'self' {origin};" in policy

"""Clips reach who holds a fresh link, whole or in parts; faults of their store are told, not as 500."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import boto3
import pytest
import requests
from django.core import signing
from django.core.management import CommandError, call_command
from django.http import HttpResponse
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
from tests.servers import Handler, serving
from tests.site.conftest import Browser, Trainer
from tests.waiting import free_port

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
    s3_server.use(monkeypatch, settings)
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


def test_failing_store_tried_thrice(
    s3: Any, settings: Settings, refusing: Callable[..., str], asked: list[str]
) -> None:
    settings.S3_ENDPOINT_URL = refusing(503, "")
    store = S3Media("s3://clips")
    retries = store.client.meta.config.retries  # type: ignore[attr-defined]
    assert (retries["mode"], retries["total_max_attempts"]) == ("standard", 3)
    with pytest.raises(MediaStoreError, match="503"):
        store.readable(KEY)
    assert len(asked) == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_registering_while_the_store_is_away_is_retried(
    trainer: Trainer, s3: Any, settings: Settings, refusing: Callable[..., str], is_there: bool
) -> None:
    settings.TEACHER_STORAGE = f"s3://clips/away/{is_there}"  # a store is opened once for each address
    settings.S3_ENDPOINT_URL = refusing(503, "") if is_there else f"http://127.0.0.1:{free_port()}"
    answer = register(trainer)
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: " in answer.content.decode()


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


def test_s3_is_allowed_by_the_policy(client: Client, s3: Any, db: None) -> None:
    policy = client.get("/accounts/login/")["Content-Security-Policy"]
    origin = media_store().origin
    assert f"media-src 'self' blob: {origin};" in policy
    assert f"connect-src 'self' {origin};" in policy


def register(trainer: Trainer) -> HttpResponse:
    clips = {side: {"key": f"hopper/{side}.mp4", "true_return": 1.0} for side in ("first", "second")}
    pair = {"uuid": str(uuid4()), "phase": "training", "step": 0, "priority": 0, **clips}
    return trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [pair]})


def send_film(trainer: Trainer) -> HttpResponse:
    return trainer.send("POST", f"{trainer.path}/episodes", {"step": 1, "key": "hopper/step-1.mp4"})


def assert_told(answer: HttpResponse, caplog: pytest.LogCaptureFixture, detail: str) -> None:
    """Assert that the answer asks to come again and says why, and so does one line of the log."""
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["detail"] == detail  # type: ignore[attr-defined]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [detail]


@pytest.fixture
def fresh_s3(s3_server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server that is set as the store, under an address that no store was opened for."""
    s3_server.use(monkeypatch, settings)
    settings.TEACHER_STORAGE = f"s3://{s3_server.bucket}/{uuid4().hex}"
    return s3_server


@pytest.mark.parametrize(
    ("ask", "name", "cause"),
    [
        (register, "AWS_SECRET_ACCESS_KEY", "403 SignatureDoesNotMatch, AWS_SECRET_ACCESS_KEY is wrong"),
        (send_film, "AWS_SECRET_ACCESS_KEY", "403 SignatureDoesNotMatch, AWS_SECRET_ACCESS_KEY is wrong"),
        (
            register,
            "AWS_ACCESS_KEY_ID",
            "403 InvalidAccessKeyId, the store doesn't know this AWS_ACCESS_KEY_ID",
        ),
    ],
)
def test_wrong_keys_are_reported(
    trainer: Trainer,
    fresh_s3: S3Server,
    caplog: pytest.LogCaptureFixture,
    ask: Callable[[Trainer], HttpResponse],
    name: str,
    cause: str,
) -> None:
    with patch.dict(os.environ, {name: "another-key"}):
        answer = ask(trainer)
    assert_told(answer, caplog, f"s3://clips at {fresh_s3.endpoint_url} cannot be used: {cause}")


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (20, "403 RequestTimeTooSkewed, this machine's clock is 20 min ahead of the store's"),
        (-20, "400 AccessDenied, this machine's clock is 20 min behind the store's"),
    ],
)
def test_wrong_clock_is_reported(
    trainer: Trainer,
    fresh_s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    minutes: int,
    words: str,
) -> None:
    def now(zone: Any = None) -> datetime:
        return datetime.now(zone) + timedelta(minutes=minutes)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now(tz)

    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: now(UTC).replace(tzinfo=None))
    monkeypatch.setattr("human_feedback_site.feedback.media.faults.datetime", Clock)
    detail = f"s3://clips at {fresh_s3.endpoint_url} cannot be used: {words}; synchronize it with NTP"
    assert_told(register(trainer), caplog, detail)


def test_missing_bucket_is_reported(
    trainer: Trainer, fresh_s3: S3Server, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TEACHER_STORAGE = "s3://nowhere"
    detail = (
        f"s3://nowhere at {fresh_s3.endpoint_url} cannot be used: 404 NoSuchBucket, "
        "create the bucket with manage.py setup_storage, or correct TEACHER_STORAGE"
    )
    assert_told(register(trainer), caplog, detail)


@pytest.mark.parametrize("bucket", ["clips", "other"])
def test_bucket_in_endpoint_url_is_reported(
    trainer: Trainer, fresh_s3: S3Server, settings: Settings, caplog: pytest.LogCaptureFixture, bucket: str
) -> None:
    settings.S3_ENDPOINT_URL = f"{fresh_s3.endpoint_url}/clips"
    settings.TEACHER_STORAGE = f"s3://{bucket}/{uuid4().hex}"
    detail = (
        f"s3://{bucket} at {fresh_s3.endpoint_url}/clips cannot be used: 404 NoSuchKey, "
        "S3_ENDPOINT_URL must not have a path (/clips); the bucket belongs in TEACHER_STORAGE only"
    )
    assert_told(register(trainer), caplog, detail)


def test_unreachable_store_is_reported(
    trainer: Trainer, fresh_s3: S3Server, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.S3_ENDPOINT_URL = f"http://127.0.0.1:{free_port()}"
    answer = register(trainer)
    detail = answer.json()["detail"]  # type: ignore[attr-defined]
    assert detail.startswith(f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: Could not connect to")
    assert_told(answer, caplog, detail)


@pytest.fixture
def asked() -> list[str]:
    """The paths that ``refusing`` is asked for."""
    return []


@pytest.fixture
def refusing(asked: list[str]) -> Iterator[Callable[..., str]]:
    """Serve one answer to everything, as stores give it that cannot run here; returns the address."""
    with ExitStack() as servers:

        def serve(status: int, body: str, *, minutes: int = 0) -> str:
            class Refusal(Handler):
                def do_GET(self) -> None:
                    asked.append(self.path)
                    self.reply(status, body)

                do_HEAD = do_GET  # noqa: N815 (the name that the base class looks for)

                def date_time_string(self, timestamp: float | None = None) -> str:
                    return format_datetime(datetime.now(UTC) + timedelta(minutes=minutes))

            return servers.enter_context(serving(Refusal))

        yield serve


def xml(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>It says so.</Message></Error>"


RIGHTS = "the access key needs the permissions s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"


@pytest.mark.parametrize(
    ("status", "body", "cause"),
    [
        (403, xml("AccessDenied"), f"403 AccessDenied, {RIGHTS}"),
        (403, "", f"403, {RIGHTS}"),
        (403, xml("Odd"), "403 Odd, It says so."),
        (
            301,
            xml("PermanentRedirect"),
            (
                "S3_ENDPOINT_URL redirects to another URL; use that one (perhaps https). "
                "Also, AWS_DEFAULT_REGION must be the bucket's region"
            ),
        ),
        (
            400,
            xml("AuthorizationHeaderMalformed"),
            "400 AuthorizationHeaderMalformed, AWS_DEFAULT_REGION must be the bucket's region",
        ),
        (
            500,
            xml("InternalError"),
            "500, Internal Server Error; check the store's log, and that S3_ENDPOINT_URL is its URL",
        ),
    ],
)
def test_errors_of_other_stores_are_reported(
    fresh_s3: S3Server, settings: Settings, refusing: Callable[..., str], status: int, body: str, cause: str
) -> None:
    settings.S3_ENDPOINT_URL = refusing(status, body)
    with pytest.raises(MediaStoreError) as caught:
        media_store().readable("hopper/first.mp4")
    assert str(caught.value) == f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: {cause}"


def test_wrong_clock_is_reported_for_any_error_code(
    trainer: Trainer,
    fresh_s3: S3Server,
    settings: Settings,
    refusing: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.S3_ENDPOINT_URL = refusing(403, xml("AccessDenied"), minutes=30)
    detail = (
        f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: 403 AccessDenied, "
        "this machine's clock is 30 min behind the store's; synchronize it with NTP"
    )
    assert_told(register(trainer), caplog, detail)


def test_setup_detects_a_web_server(
    fresh_s3: S3Server, settings: Settings, refusing: Callable[..., str]
) -> None:
    settings.S3_ENDPOINT_URL = refusing(200, "<html>Welcome!")
    with pytest.raises(CommandError) as caught:
        call_command("setup_storage", wait=0.0)
    assert str(caught.value) == (
        f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: "
        "500, Internal Server Error; check the store's log, and that S3_ENDPOINT_URL is its URL"
    )


def test_import_reports_store_errors(
    trainer: Trainer, fresh_s3: S3Server, settings: Settings, tmp_path: Path, media_folder: Path
) -> None:
    settings.TEACHER_STORAGE = str(media_folder)
    trainer.register()
    tables = {name: tmp_path / name for name in ("comparisons.csv", "labels.csv")}
    for name, path in tables.items():
        path.write_bytes(trainer.send("GET", f"{trainer.path}/{name}").getvalue())
    trainer.experiment.comparisons.all().delete()
    settings.TEACHER_STORAGE = "s3://nowhere"
    with pytest.raises(CommandError, match=r"Nothing was imported.\ns3://nowhere at .* 404 NoSuchBucket"):
        call_command("import_labels", "hopper", *map(str, tables.values()))


def test_unreadable_folder_is_reported(
    trainer: Trainer, client: Client, media_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    media_folder.mkdir()
    (media_folder / "hopper").symlink_to("hopper")  # a loop: not even root can follow it
    link = media_store().url("hopper/first.mp4")
    detail = f"the folder {media_folder} cannot be used: Too many levels of symbolic links"
    assert_told(register(trainer), caplog, detail)
    client.raise_request_exception = False
    page = client.get(link)
    assert (page.status_code, page["Retry-After"]) == (503, "5")

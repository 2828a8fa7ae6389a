"""Test what is wrong with the media store is told in the answer and in the log, never as status 500."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.store import media_store
from tests.conftest import S3Server
from tests.site.conftest import Trainer


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
def s3(s3_server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server that is set as the store, under an address that no store was opened for."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    settings.S3_ENDPOINT_URL = s3_server.endpoint_url
    settings.S3_PUBLIC_ENDPOINT_URL = s3_server.endpoint_url
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
    s3: S3Server,
    caplog: pytest.LogCaptureFixture,
    ask: Callable[[Trainer], HttpResponse],
    name: str,
    cause: str,
) -> None:
    with patch.dict(os.environ, {name: "another-key"}):
        answer = ask(trainer)
    assert_told(answer, caplog, f"s3://clips at {s3.endpoint_url} cannot be used: {cause}")


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (20, "403 RequestTimeTooSkewed, this machine's clock is 20 min ahead of the store's"),
        (-20, "400 AccessDenied, this machine's clock is 20 min behind the store's"),
    ],
)
def test_wrong_clock_is_reported(
    trainer: Trainer,
    s3: S3Server,
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
    detail = f"s3://clips at {s3.endpoint_url} cannot be used: {words}; synchronize it with NTP"
    assert_told(register(trainer), caplog, detail)


def test_missing_bucket_is_reported(
    trainer: Trainer, s3: S3Server, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TEACHER_STORAGE = "s3://nowhere"
    detail = (
        f"s3://nowhere at {s3.endpoint_url} cannot be used: 404 NoSuchBucket, "
        "create the bucket with manage.py setup_storage, or correct TEACHER_STORAGE"
    )
    assert_told(register(trainer), caplog, detail)


@pytest.mark.parametrize("bucket", ["clips", "other"])
def test_bucket_in_endpoint_url_is_reported(
    trainer: Trainer, s3: S3Server, settings: Settings, caplog: pytest.LogCaptureFixture, bucket: str
) -> None:
    settings.S3_ENDPOINT_URL = f"{s3.endpoint_url}/clips"
    settings.TEACHER_STORAGE = f"s3://{bucket}/{uuid4().hex}"
    detail = (
        f"s3://{bucket} at {s3.endpoint_url}/clips cannot be used: 404 NoSuchKey, "
        "S3_ENDPOINT_URL must not have a path (/clips); the bucket belongs in TEACHER_STORAGE only"
    )
    assert_told(register(trainer), caplog, detail)


def test_unreachable_store_is_reported(
    trainer: Trainer,
    s3: S3Server,
    settings: Settings,
    free_port: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.S3_ENDPOINT_URL = f"http://127.0.0.1:{free_port()}"
    answer = register(trainer)
    detail = answer.json()["detail"]  # type: ignore[attr-defined]
    assert detail.startswith(f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: Could not connect to")
    assert_told(answer, caplog, detail)


@pytest.fixture
def refusing() -> Iterator[Callable[..., str]]:
    """Serve one answer to everything, as stores give it that cannot run here; returns the address."""
    servers: list[ThreadingHTTPServer] = []

    def serve(status: int, body: str, *, minutes: int = 0) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response_only(status)
                self.send_header("Date", format_datetime(datetime.now(UTC) + timedelta(minutes=minutes)))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body.encode())

            do_HEAD = do_GET  # noqa: N815 (the name that the base class looks for)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


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
    s3: S3Server, settings: Settings, refusing: Callable[..., str], status: int, body: str, cause: str
) -> None:
    settings.S3_ENDPOINT_URL = refusing(status, body)
    with pytest.raises(MediaStoreError) as caught:
        media_store().readable("hopper/first.mp4")
    assert str(caught.value) == f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: {cause}"


def test_wrong_clock_is_reported_for_any_error_code(
    trainer: Trainer,
    s3: S3Server,
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


def test_setup_detects_a_web_server(s3: S3Server, settings: Settings, refusing: Callable[..., str]) -> None:
    settings.S3_ENDPOINT_URL = refusing(200, "<html>Welcome!")
    with pytest.raises(CommandError) as caught:
        call_command("setup_storage", wait=0.0)
    assert str(caught.value) == (
        f"s3://clips at {settings.S3_ENDPOINT_URL} cannot be used: "
        "500, Internal Server Error; check the store's log, and that S3_ENDPOINT_URL is its URL"
    )


def test_import_reports_store_errors(
    trainer: Trainer, s3: S3Server, settings: Settings, tmp_path: Path, media_folder: Path
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

"""Probes learn whether the site could do its work, and what is missing where it could not."""

import errno
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback import health
from human_feedback_site.feedback.api.authentication import TokenAuthentication
from tests.databases import Using

pytestmark = pytest.mark.both_databases


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch, media_folder: Path) -> Iterator[None]:
    """Let nothing be known yet, as where a process has just started, and no result be reused."""
    monkeypatch.setattr(health, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(health._Last, "logged", {})
    health._migrated.clear()
    yield
    health._migrated.clear()


@pytest.fixture
def one_migration_missing(transactional_db: None) -> Iterator[None]:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("sessions", "0001_initial")
    yield
    recorder.record_unapplied("sessions", "0001_initial")
    recorder.record_applied("sessions", "0001_initial")


@pytest.fixture
def no_database(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**connections.settings["default"], "NAME": "/nowhere/secret-name", "HOST": "/nowhere"}
    monkeypatch.setitem(connections.settings, "default", settings)


def test_a_site_whose_database_is_complete_is_ready(client: Client, db: None) -> None:
    response = client.get("/readyz")
    ready = {"status": "ready", "instance": "", "kinds": ["pair", "graded", "rating", "best_worst"]}
    assert (response.status_code, json.loads(response.content)) == (200, ready)
    assert "no-store" in response["Cache-Control"]


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_may_ask_for_the_head_alone_and_nothing_else(db: None, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert client.generic(method, path).status_code == 405


def test_missing_migration_is_named_until_applied(client: Client, one_migration_missing: None) -> None:
    for _ in range(2):
        assert_not_ready(client.get("/readyz"), "1 migration(s) are not applied")  # type: ignore[arg-type]
    MigrationRecorder(connection).record_applied("sessions", "0001_initial")
    assert client.get("/readyz").status_code == 200


def test_new_database(client: Client, using: Using, migrated_database: Path, tmp_path: Path) -> None:
    database = tmp_path / "site.sqlite3"
    with using(f"sqlite:///{database}"):
        unready: Any = client.get("/readyz")
        assert_not_ready(unready, "apply them with: python manage.py migrate")
        shutil.copy(migrated_database, database)
        assert client.get("/readyz").status_code == 200


def test_migrations_are_checked_once(client: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/readyz").status_code == 200
    monkeypatch.delattr(health, "MigrationExecutor")
    assert client.get("/readyz").status_code == 200


def test_database_away(client: Client, no_database: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        response = client.get("/readyz")
    assert_not_ready(response, "database does not answer")  # type: ignore[arg-type]
    assert "secret-name" not in response.content.decode()
    assert ["Not ready" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("address", ["{}", "file:{}?mode=ro"])
def test_a_database_that_can_only_be_read_is_not_ready(
    client: Client, migrated_database: Path, monkeypatch: pytest.MonkeyPatch, db: None, address: str
) -> None:
    sqlite = {
        "ENGINE": "django.db.backends.sqlite3",
        "OPTIONS": {},
        "NAME": address.format(migrated_database),
    }
    read_only = connections.settings["default"] | sqlite
    monkeypatch.setitem(connections.settings, "default", read_only)
    response: Any = client.get("/readyz")
    if "ro" in address:
        assert_not_ready(response, "The database is read-only.")
    else:
        assert response.status_code == 200


def test_a_media_folder_that_cannot_be_written_is_not_ready(
    client: Client, db: None, media_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    media_folder.mkdir()
    assert client.get("/readyz").status_code == 200
    assert list(media_folder.iterdir()) == []
    media_folder.rmdir()
    media_folder.write_text("")
    response: Any = client.get("/readyz")
    assert_not_ready(response, "The media store cannot be used.")
    assert "Not a directory" in caplog.text


def test_a_bucket_that_does_not_answer_is_not_ready(
    client: Client, db: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    settings.TEACHER_STORAGE, settings.S3_ENDPOINT_URL = "s3://away", "http://127.0.0.1:9"
    response: Any = client.get("/readyz")
    assert_not_ready(response, "The media store cannot be used.")


def test_a_disk_with_hardly_any_room_is_not_ready(
    client: Client, db: None, media_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    media_folder.mkdir()
    monkeypatch.setattr(health, "LEAST_FREE_BYTES", 2**60)
    response: Any = client.get("/readyz")
    assert_not_ready(response, "MB left")


def test_frequent_probes_are_cached(client: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health._Last, "checked_at", -60.0)
    monkeypatch.setattr(health, "CACHE_SECONDS", 60.0)
    assert client.get("/readyz").status_code == 200
    monkeypatch.delattr(health, "_database_obstacle")
    assert client.get("/readyz").status_code == 200


def test_errors_that_pass_have_a_reason_and_others_have_none(tmp_path: Path) -> None:
    full = sqlite3.connect(":memory:")
    full.executescript("CREATE TABLE x (y); PRAGMA max_page_count = 2")
    read_only = sqlite3.connect(f"file:{tmp_path / 'x'}?mode=rwc", uri=True)
    read_only.execute("PRAGMA query_only = 1")
    with closing(full), closing(read_only):
        for database, statement, reason in (
            (full, "INSERT INTO x VALUES (zeroblob(9000))", "The disk of the database is full."),
            (read_only, "CREATE TABLE x (y)", "The database is read-only."),
        ):
            with pytest.raises(sqlite3.OperationalError) as raised:
                database.execute(statement)
            error = OperationalError(str(raised.value))
            error.__cause__ = raised.value
            assert health.temporary_reason(error) == reason
    crowded = OperationalError("connection failed: FATAL:  sorry, too many clients already")
    assert health.temporary_reason(crowded) == "The database has no free connections."
    assert health.temporary_reason(InterfaceError()) == "The database does not answer."
    assert health.temporary_reason(OSError(errno.ENOSPC, "x")) == "The disk is full."
    for other in (IntegrityError(), ValueError(), OSError(errno.ENOENT, "x"), None):
        assert health.temporary_reason(other) is None


def test_a_request_that_finds_the_disk_full_is_refused_in_one_line(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    client.raise_request_exception = False
    monkeypatch.setattr(TokenAuthentication, "authenticate", fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            response: Any = client.get("/api/v1/experiments/x/decisions")
            assert_not_ready(response, "The disk is full. Try again soon.")
    assert [(record.exc_info, record.getMessage()) for record in caplog.records] == [
        (None, "The disk is full. [Errno 28] No space left on device")
    ]


def assert_not_ready(response: HttpResponse, reason: str) -> None:
    assert response.status_code == 503
    assert response["Content-Type"] == "application/problem+json"
    assert response["Retry-After"] == "5"
    problem = json.loads(response.content)
    assert problem["status"] == 503
    assert reason in problem["detail"]
    assert "\n" not in problem["detail"]

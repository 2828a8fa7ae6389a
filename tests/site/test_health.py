"""Probes learn whether the site could do its work, and what is missing where it could not."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpResponse
from django.test import Client

from human_feedback_site.feedback import health

if TYPE_CHECKING:
    from tests.databases import Using

pytestmark = pytest.mark.both_databases


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    """Let nothing be known of the migrations yet, as where a process has just started."""
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
    assert (response.status_code, json.loads(response.content)) == (200, {"status": "ready", "instance": ""})
    assert "no-store" in response["Cache-Control"]


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_may_ask_for_the_head_alone_and_nothing_else(db: None, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert client.generic(method, path).status_code == 405


def test_a_missing_migration_is_named_until_it_is_applied(
    client: Client, one_migration_missing: None
) -> None:
    for _ in range(2):
        assert_not_ready(client.get("/readyz"), "1 migration(s) are not applied")  # type: ignore[arg-type]
    MigrationRecorder(connection).record_applied("sessions", "0001_initial")
    assert client.get("/readyz").status_code == 200


def test_a_site_whose_database_is_new_becomes_ready_when_it_is_migrated(
    client: Client, using: Using, migrated_database: Path, tmp_path: Path
) -> None:
    database = tmp_path / "site.sqlite3"
    with using(f"sqlite:///{database}"):
        unready: Any = client.get("/readyz")
        assert_not_ready(unready, "apply them with: python manage.py migrate")
        shutil.copy(migrated_database, database)
        assert client.get("/readyz").status_code == 200


def test_migrations_are_not_looked_up_again_once_they_were_complete(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/readyz").status_code == 200
    monkeypatch.delattr(health, "MigrationExecutor")
    assert client.get("/readyz").status_code == 200


def test_a_database_that_is_away_is_told_without_saying_where_it_should_be(
    client: Client, no_database: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        response = client.get("/readyz")
    assert_not_ready(response, "database does not answer")  # type: ignore[arg-type]
    assert "secret-name" not in response.content.decode()
    assert ["not ready" in record.getMessage() for record in caplog.records] == [True]


def assert_not_ready(response: HttpResponse, reason: str) -> None:
    assert response.status_code == 503
    assert response["Content-Type"] == "application/problem+json"
    assert response["Retry-After"] == "5"
    problem = json.loads(response.content)
    assert problem["status"] == 503
    assert reason in problem["detail"]
    assert "\n" not in problem["detail"]

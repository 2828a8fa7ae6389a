"""Test what every answer carries, what the API says when Django itself fails, and what pages may load."""

import json
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback.api import researcher_views
from tests.site.conftest import Trainer, assert_guarded


@pytest.mark.parametrize(
    "path",
    ["/api/nothing", "/nothing", "/static/admin/css/base.css"],
)
def test_other_responses_have_security_headers(client: Client, db: None, path: str) -> None:
    response: Any = client.head(path)
    assert_guarded(response)


def test_static_files_are_served_without_being_collected(settings: Settings) -> None:
    settings.WHITENOISE_AUTOREFRESH = False
    response = Client().head("/static/admin/css/base.css")
    assert (response.status_code, response["Content-Type"]) == (200, 'text/css; charset="utf-8"')
    assert int(response["Content-Length"]) > 10_000


def test_the_site_says_that_it_is_alive(client: Client, settings: Settings) -> None:
    settings.INSTANCE_ID = "abc"
    response = client.get("/livez")
    assert (response.status_code, json.loads(response.content)) == (200, {"instance": "abc"})
    assert client.post("/livez").status_code == 405


def test_hosts_that_are_not_ours_are_refused_with_a_problem(settings: Settings) -> None:
    response: Any = Client().get("/api/v1/labels", headers={"Host": "evil.example"})
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert_guarded(response)


def test_failures_reveal_nothing(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(researcher_views, "decisions_after", fail)
    trainer.client.raise_request_exception = False
    response = trainer.send("GET", f"{trainer.path}/decisions")
    assert response.status_code == 500
    assert response["Content-Type"] == "application/problem+json"
    assert "secret" not in response.content.decode()


def test_unknown_addresses_are_problems_below_api_and_pages_elsewhere(client: Client, db: None) -> None:
    assert client.get("/api/v2/labels")["Content-Type"] == "application/problem+json"
    assert client.get("/nothing")["Content-Type"].startswith("text/html")

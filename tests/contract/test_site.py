"""The site takes the story's requests and gives its responses."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from human_feedback_site.feedback.queue import leases
from human_feedback_site.feedback.services.accounts import create_token


class FirstIsLeft(random.Random):
    """Draws no swap, so that the story has one ending."""

    def getrandbits(self, k: int, /) -> int:
        return 0


@pytest.fixture
def clients(db: None) -> dict[str, Client]:
    token = create_token(User.objects.create(username="ada", is_staff=True))
    return {
        "trainer": Client(headers={"Authorization": f"Bearer {token}"}),
        "stranger": Client(headers={"Authorization": "Bearer tt_wrong"}),
        "labeler": Client(),
    }


@pytest.mark.both_databases
def test_the_site_keeps_the_contract(
    story: list[Any],
    names: Any,
    clients: dict[str, Client],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TEACHER_STORAGE = str(tmp_path)
    monkeypatch.setattr(leases, "_random", FirstIsLeft())
    for exchange in story:
        if exchange.name.endswith("-register"):
            _upload(tmp_path, exchange.body)
        data = "" if exchange.body is None else json.dumps(names.fill(exchange.body))
        response: Any = clients[exchange.who].generic(
            exchange.method, names.fill(exchange.path), data, content_type="application/json"
        )
        body = json.loads(response.content)
        assert response.status_code == exchange.status, (exchange.name, body)
        kind = "application/json" if response.status_code < 400 else "application/problem+json"
        assert response["Content-Type"] == kind, exchange.name
        assert names.matches(exchange.answer, body), (exchange.name, exchange.answer, body)
        if "invite_url" in body and exchange.name.endswith("-invite-a-labeler"):
            assert clients["labeler"].get(body["invite_url"]).status_code == 302


def _upload(folder: Path, body: Any) -> None:
    for comparison in body["comparisons"]:
        for side in ("first", "second"):
            path = folder / comparison[side]["key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a clip")

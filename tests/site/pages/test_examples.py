"""A comparison's card on the experiment page makes it an example for labelers, or a pair to practice on."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client

from human_feedback_site.feedback.models import Comparison, Example, Experiment
from tests.site.conftest import Browser, Trainer

PATH = "/experiments/hopper/"
LESSON = {"better": "second", "explanation": "It <b>lands</b>.", "practice": "on", "page": "1"}


@pytest.fixture
def uuid(trainer: Trainer) -> str:
    """A comparison that can be an example."""
    return trainer.register()[0]


def test_example_is_shown_and_no_longer_asked(
    trainer: Trainer, browser: Browser, researcher_browser: Client, uuid: str
) -> None:
    reply = researcher_browser.post(f"{PATH}examples/{uuid}", LESSON)
    assert reply.headers["Location"] == f"{PATH}?page=1#comparison-{uuid}"
    [item] = browser.get(f"{trainer.path}/examples")["items"]
    assert (item["explanation"], item["practice"]) == ("It <b>lands</b>.", True)
    assert browser.lease() == []
    html = researcher_browser.get(PATH).content.decode()
    assert f'id="comparison-{uuid}"' in html
    assert "practice pair</span>" in html
    assert "Use as an example" not in html


def test_example_is_undone(trainer: Trainer, browser: Browser, researcher_browser: Client, uuid: str) -> None:
    researcher_browser.post(f"{PATH}examples/{uuid}", {"better": "first"})
    assert "example</span>" in researcher_browser.get(PATH).content.decode()
    for _ in range(2):
        assert researcher_browser.post(f"{PATH}examples/{uuid}/remove").status_code == 302
    assert browser.get(f"{trainer.path}/examples") == {"items": []}


def test_decision_is_the_suggested_answer(
    trainer: Trainer,
    browser: Browser,
    side_of: Callable[[Any, str], str],
    researcher_browser: Client,
    uuid: str,
) -> None:
    [lease] = browser.lease()
    browser.answer(lease, side_of(lease, "second"))
    assert '<option value="second" selected>' in researcher_browser.get(PATH).content.decode()
    researcher_browser.post(f"{PATH}examples/{uuid}", LESSON)
    assert Comparison.objects.get().status == "answered"  # what was said of it stands


def test_hidden_comparisons_are_no_examples(trainer: Trainer, researcher_browser: Client, uuid: str) -> None:
    Comparison.objects.update(status="gold", gold="first")
    assert "Use as an example" not in researcher_browser.get(PATH).content.decode()
    assert researcher_browser.post(f"{PATH}examples/{uuid}", LESSON).status_code == 409
    Comparison.objects.update(status="answered", gold=None)
    Experiment.objects.update(media_deleted_at=Now())
    assert "Use as an example" not in researcher_browser.get(PATH).content.decode()
    assert researcher_browser.post(f"{PATH}examples/{uuid}", LESSON).status_code == 409
    assert not Example.objects.exists()


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({}, "Choose the correct answer."),
        ({"better": "left"}, "Choose the correct answer."),
        (
            {**LESSON, "explanation": "a" * 501},
            "The explanation must not be longer than 500 characters.",
        ),
        ({**LESSON, "explanation": "a\0"}, "Null characters are not allowed."),
    ],
)
def test_invalid_examples(researcher_browser: Client, uuid: str, form: dict[str, str], reason: str) -> None:
    response = researcher_browser.post(f"{PATH}examples/{uuid}", form)
    assert response.status_code == 400
    assert reason in response.content.decode()
    assert not Example.objects.exists()


@pytest.mark.parametrize("path", ["", "/remove"])
def test_only_managers_choose_examples(
    trainer: Trainer,
    stranger: Trainer,
    browser: Browser,
    signed_in: Callable[[User], Client],
    uuid: str,
    path: str,
) -> None:
    address = f"{PATH}examples/{uuid}{path}"
    for client in (signed_in(stranger.user), browser.client):
        assert client.post(address, LESSON).status_code == 404
    assert Client().post(address, LESSON).headers["Location"] == f"/accounts/login/?next={address}"
    mine = signed_in(trainer.user)
    assert mine.get(address).status_code == 405
    if not path:
        for other in (stranger.register()[0], uuid4()):
            assert mine.post(f"{PATH}examples/{other}", LESSON).status_code == 404
    assert not Example.objects.exists()

"""The page of a labeler's own answers."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from human_feedback_site.feedback.models import Experiment, Label, Undo
from tests.site.conftest import Browser, Trainer

PATH = "/experiments/hopper/history"


def chosen(html: str) -> list[str]:
    return re.findall(r'value="(\w+)" aria-pressed="true"', html)


def read(browser: Browser) -> str:
    return browser.client.get(PATH).content.decode()


@pytest.mark.both_databases
def test_standing_answers_are_listed(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    trainer.register(4)
    one, other = invite("one"), invite("other")
    for choice in ("left", "equal"):
        one.answer(one.lease()[0], choice)
    one.undo(one.answer(one.lease()[0], "cant_tell"))
    assert chosen(read(one)) == ["equal", "left"]
    assert chosen(read(other)) == []
    assert "You haven’t answered yet" in read(other)


@pytest.mark.both_databases
def test_changed_answer_is_appended_in_place(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    old = browser.answer(browser.lease()[0], "left")
    browser.answer(browser.lease()[0], "equal")
    body = {"uuid": str(uuid4()), "choice": "right", "page": "1"}
    for _ in range(2):  # the form sent twice is one change
        response: Any = browser.client.post(f"{PATH}/{old['uuid']}", body)
        assert response.headers["Location"] == f"{PATH}?page=1#{body['uuid']}"
    assert chosen(read(browser)) == ["equal", "right"]
    assert (Label.objects.count(), Undo.objects.count()) == (3, 1)


def test_invalid_changes_are_refused(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    trainer.register()
    one, other = invite("one"), invite("other")
    label = one.answer(one.lease()[0], "left")
    good = {"uuid": str(uuid4()), "choice": "right"}
    path = f"{PATH}/{label['uuid']}"
    for bad in ({"uuid": "x"}, {"choice": "first"}, {"choice": ""}):
        assert one.client.post(path, {**good, **bad}).status_code == 400
    assert one.client.post(path, {}).status_code == 400
    assert other.client.post(path, good).status_code == 404
    assert one.client.post(path, good).status_code == 302
    assert one.client.post(path, {**good, "uuid": str(uuid4())}).status_code == 409


def test_deleted_clips_are_marked(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    browser.answer(browser.lease()[0])
    assert "<video" in read(browser)
    Experiment.objects.update(media_deleted_at="2999-01-01T00:00Z")
    assert "<video" not in read(browser)


@pytest.mark.parametrize("path", [PATH, "/experiments/hopper/done"])
def test_only_labelers_have_one(trainer: Trainer, stranger: Trainer, browser: Browser, path: str) -> None:
    assert browser.client.get(path).status_code == 200
    assert browser.client.get(path.replace("hopper", "walker")).status_code == 404


def test_done_page_thanks_labelers(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    for lease in browser.lease(2):
        browser.answer(lease)
    assert "2 answers saved." in browser.client.get("/experiments/hopper/done").content.decode()

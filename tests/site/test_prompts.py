"""The prompt is edited on the site; each answer knows the one that it was given under."""

from typing import Any

import pytest

from human_feedback_site.feedback.models import Experiment, Label, PromptVersion
from human_feedback_site.feedback.services.wording import edit_prompt
from tests.site.conftest import Browser, Trainer

LANDS = "Which lands better?"


@pytest.fixture
def reword(trainer: Trainer) -> Any:
    """Change the prompt on the site."""

    def reword(text: str = LANDS) -> None:
        now = trainer.experiment
        edit_prompt(now, text, trainer.user, seen=now.prompt_version)

    return reword


def versions() -> list[int]:
    return list(Label.objects.order_by("pk").values_list("prompt_version", flat=True))


def test_open_pages_read_it_with_their_next_request(trainer: Trainer, browser: Browser, reword: Any) -> None:
    trainer.register()
    assert browser.ask()["prompt"] == "Which hops higher?"
    reword()
    assert browser.ask()["prompt"] == LANDS


def test_label_has_the_prompt_of_its_lease(trainer: Trainer, browser: Browser, reword: Any) -> None:
    trainer.register(4)
    one, two, three = browser.lease(3)
    browser.answer(one)
    reword()
    browser.answer(two)  # the page does not know yet
    browser.ask(1, held=[three["uuid"]])
    browser.answer(three)
    browser.answer(browser.lease()[0])
    assert versions() == [1, 1, 2, 2]


def test_returning_lease_has_new_prompt(trainer: Trainer, browser: Browser, reword: Any, expire: Any) -> None:
    trainer.register()
    [lease] = browser.lease()
    expire(lease)
    reword()
    assert browser.ask(1, held=[lease["uuid"]])["renewed"] == [lease["uuid"]]
    browser.answer(lease)
    assert versions() == [2]


def test_revised_answer_has_the_new_prompt(trainer: Trainer, browser: Browser, reword: Any) -> None:
    trainer.register(2)
    labels = [browser.answer(lease) for lease in browser.lease(2)]
    reword()
    again = browser.undo(labels[0])["lease"]
    browser.answer(again, "right")
    form = {"uuid": again["uuid"], "choice": "equal"}
    path = f"/experiments/hopper/history/{labels[1]['uuid']}"
    assert browser.client.post(path, form).status_code == 302
    assert versions() == [1, 1, 2, 2]


@pytest.mark.both_databases
def test_feed_has_the_newest_counted_prompt(trainer: Trainer, browser: Browser, reword: Any) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0])
    assert [item["prompt_version"] for item in trainer.decisions()["items"]] == [1]
    reword()
    browser.answer(browser.undo(label)["lease"])
    assert trainer.decisions()["items"][-1]["prompt_version"] == 2


def test_a_resumed_run_keeps_what_was_edited_on_the_site(trainer: Trainer, reword: Any) -> None:
    reword()
    assert trainer.put()["prompt"] == LANDS
    assert trainer.experiment.prompt_version == 2


def test_a_run_with_another_prompt_than_before_changes_it(trainer: Trainer, reword: Any) -> None:
    reword()
    for _ in range(2):  # the second time it says nothing new
        assert trainer.put(prompt="Which is faster?")["prompt"] == "Which is faster?"
    kept = PromptVersion.objects.values_list("version", "text", "author__username")
    assert list(kept) == [(3, "Which is faster?", None), (2, LANDS, "ada"), (1, "Which hops higher?", None)]


def test_the_same_prompt_again_is_no_new_version(trainer: Trainer, reword: Any) -> None:
    reword("Which hops higher?")
    assert trainer.experiment.prompt_version == 1
    assert Experiment.objects.get().prompts.count() == 1

"""Labelers agree to the version of the consent text that they see, and answers know their prompt."""

import json
from typing import Any

import pytest
from django.test import Client

from human_feedback_site.feedback.models import (
    ConsentAnswer,
    ConsentText,
    Experiment,
    Label,
    Lease,
    Participation,
    PromptVersion,
)
from human_feedback_site.feedback.services.wording import edit_prompt, set_text
from tests.site.conftest import Browser, Trainer, expire

PAGE = "/experiments/hopper/consent"
LABEL = "/experiments/hopper/label"
EDIT = f"{PAGE}/text"
LEASES = "/experiments/hopper/leases"


@pytest.fixture
def text(trainer: Trainer) -> ConsentText:
    trainer.register(3)
    text = set_text(trainer.experiment, "We keep what you answer.\n\n<b>You</b> may stop.")
    assert text is not None
    return text


def say(browser: Browser, answer: str, version: str) -> Any:
    return browser.client.post(PAGE, {"answer": answer, "version": version})


def refused(browser: Browser) -> bool:
    response = browser.send("POST", LEASES, {"count": 1})
    if response.status_code == 200:
        return False
    problem = json.loads(response.content)
    assert (response.status_code, problem["type"]) == (403, "urn:rl-teacher:no-consent")
    assert "consent text" in problem["detail"]
    return True


def test_without_a_text_nobody_is_asked(trainer: Trainer, browser: Browser) -> None:
    response: Any = browser.client.get(PAGE)
    assert response.headers["Location"] == LABEL
    assert not refused(browser)


def test_the_text_comes_before_the_first_pair(text: ConsentText, browser: Browser) -> None:
    response: Any = browser.client.get(LABEL)
    assert response.headers["Location"] == PAGE
    html = browser.client.get(PAGE).content.decode()
    assert "<p>We keep what you answer.</p>" in html
    assert "&lt;b&gt;You&lt;/b&gt; may stop." in html
    assert refused(browser)
    assert not Lease.objects.exists()


def test_agreement_names_its_text(text: ConsentText, browser: Browser) -> None:
    assert say(browser, "yes", text.digest).headers["Location"] == LABEL
    assert browser.client.get(LABEL).status_code == 200
    assert not refused(browser)
    [answer] = ConsentAnswer.objects.all()
    assert (answer.text, answer.labeler.name, answer.agreed) == (text, "you", True)


def test_declining_shows_nothing_and_can_be_changed(text: ConsentText, browser: Browser) -> None:
    assert "Goodbye, and thank you" in say(browser, "no", text.digest).content.decode()
    assert refused(browser)
    assert browser.client.get(LABEL).status_code == 302
    say(browser, "yes", text.digest)
    assert not refused(browser)
    assert list(ConsentAnswer.objects.order_by("pk").values_list("agreed", flat=True)) == [False, True]


@pytest.mark.both_databases
def test_new_text_is_asked_again(text: ConsentText, browser: Browser, trainer: Trainer) -> None:
    say(browser, "yes", text.digest)
    [lease] = browser.lease()
    set_text(trainer.experiment, "Something else.")
    assert refused(browser)
    browser.answer(lease)  # what was given before counts
    set_text(trainer.experiment, text.text.replace("\n", "\r\n") + "\n")
    assert not refused(browser)
    set_text(trainer.experiment, " \n")
    assert not refused(browser)
    assert ConsentText.objects.count() == 2


@pytest.mark.parametrize(
    "form", [{}, {"answer": "yes"}, {"answer": "maybe"}, {"answer": "yes", "version": "0"}]
)
def test_consent_to_another_version(text: ConsentText, browser: Browser, form: dict[str, str]) -> None:
    assert "I agree" in browser.client.post(PAGE, form).content.decode()
    assert not ConsentAnswer.objects.exists()
    assert refused(browser)


@pytest.mark.both_databases
def test_consent_is_per_experiment(text: ConsentText, browser: Browser, trainer: Trainer) -> None:
    second = type(trainer)(trainer.user, "cheetah")
    second.put(invite="you")
    set_text(second.experiment, text.text)
    say(browser, "yes", text.digest)
    assert browser.send("POST", "/experiments/cheetah/leases", {"count": 1}).status_code == 403
    assert Participation.objects.filter(consented_to=text).count() == 1


def test_researcher_edits_the_text(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    response: Any = researcher_browser.post(EDIT, {"text": "Read this. 😀"})
    assert response.headers["Location"] == "/experiments/hopper/settings"
    text = ConsentText.objects.get()
    assert text.text == "Read this. 😀"
    say(browser, "yes", text.digest)
    html = researcher_browser.get("/experiments/hopper/settings").content.decode()
    assert "Read this. 😀</textarea>" in html
    assert "agreed to by 1" in html
    researcher_browser.post(EDIT, {"text": ""})
    assert trainer.experiment.consent is None


@pytest.mark.parametrize("text", ["x" * 20_001, "a\x00b"])
def test_invalid_texts_are_refused(trainer: Trainer, researcher_browser: Client, text: str) -> None:
    assert researcher_browser.post(EDIT, {"text": text}).status_code == 400
    assert trainer.experiment.consent is None


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


def test_returning_lease_has_new_prompt(browser: Browser, lease: Any, reword: Any) -> None:
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
def test_feed_has_the_newest_counted_prompt(
    trainer: Trainer, browser: Browser, label: Any, reword: Any
) -> None:
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

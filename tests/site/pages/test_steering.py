"""Pausing, resuming, finishing, reopening and rewording an experiment from its page."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.site.conftest import Browser, Trainer

PATH = "/experiments/hopper/"
STEPS = ("pause", "resume", "finish", "reopen", "prompt")


@pytest.fixture
def page(trainer: Trainer, researcher_browser: Client) -> Callable[..., str]:
    """Return what the page says after a step was taken on it."""

    def page(*steps: str) -> str:
        for step in steps:
            response = researcher_browser.post(PATH + step)
            assert (response.status_code, response.headers["Location"]) == (302, PATH)
        return researcher_browser.get(PATH).content.decode()

    return page


def test_pause_reaches_everybody(trainer: Trainer, browser: Browser, page: Callable[..., str]) -> None:
    trainer.register()
    html = page("pause")
    assert "Paused: labelers get no new pairs" in html
    assert 'hopper/resume"' in html
    assert 'hopper/pause"' not in html
    assert (trainer.decisions()["state"], browser.lease()) == ("paused", [])
    assert "Paused: labelers" not in page("resume")
    assert trainer.decisions()["state"] == "running"
    assert len(browser.lease()) == 1


def test_finishing_asks_for_confirmation(trainer: Trainer, researcher_browser: Client) -> None:
    trainer.register(2)
    html = researcher_browser.get(PATH + "finish").content.decode()
    assert "2 comparisons have no answer yet" in html
    assert trainer.experiment.state == "running"


@pytest.mark.both_databases
def test_finishing_cancels_only_unanswered_comparisons(
    trainer: Trainer, stranger: Trainer, browser: Browser, page: Callable[..., str]
) -> None:
    stranger.register()
    trainer.register(3)
    trainer.overlap(2)
    one, other = browser.lease(2)
    browser.answer(one)
    html = page("finish")
    assert "Finished: no more labels are requested" in html
    assert 'hopper/finish"' not in html
    assert browser.ask()["state"] == "finished"
    feed = trainer.decisions()
    assert (feed["state"], feed["open"], len(feed["items"])) == ("finished", 1, 1)
    assert browser.answer(other)["status"] == "surplus"  # it was on its way, so it is kept
    assert stranger.decisions()["open"] == 1


@pytest.mark.both_databases
def test_finished_experiment_reopens(trainer: Trainer, browser: Browser, page: Callable[..., str]) -> None:
    page("finish")
    assert trainer.put()["state"] == "finished"  # a trainer that comes back does not reopen it by itself
    page("reopen")
    assert trainer.put()["state"] == "running"
    assert trainer.experiment.finished_at is None
    trainer.register()
    assert len(browser.lease()) == 1


def test_repeated_actions_change_nothing(trainer: Trainer, page: Callable[..., str]) -> None:
    page("resume", "reopen")
    assert trainer.experiment.state == "running"
    page("finish", "pause", "resume")
    assert trainer.experiment.state == "finished"


@pytest.mark.parametrize("step", STEPS)
def test_only_managers_may_steer_and_need_a_csrf_token(
    trainer: Trainer, stranger: Trainer, browser: Browser, signed_in: Callable[[User], Client], step: str
) -> None:
    for client in (signed_in(stranger.user), browser.client):
        assert client.post(PATH + step).status_code == 404
        assert client.get(PATH + "finish").status_code == 404
    nobody = Client().post(PATH + step)
    assert nobody.headers["Location"] == f"/accounts/login/?next={PATH}{step}"
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(trainer.user)
    assert forger.post(PATH + step).status_code == 403
    if step != "finish":  # which is asked about first
        assert signed_in(trainer.user).get(PATH + step).status_code == 405
    assert trainer.experiment.state == "running"
    assert signed_in(trainer.user).post(f"/experiments/nothing/{step}").status_code == 404


def test_admin_may_steer_other_experiments(trainer: Trainer, signed_in: Callable[[User], Client]) -> None:
    admin = signed_in(User.objects.create(username="root", is_staff=True, is_superuser=True))
    assert admin.post(PATH + "pause").status_code == 302
    assert trainer.experiment.state == "paused"


def test_prompt_is_changed_and_its_history_shown(trainer: Trainer, researcher_browser: Client) -> None:
    form = {"prompt": "  Which lands\nbetter? <b>", "version": 1}
    assert researcher_browser.post(PATH + "prompt", form).headers["Location"] == PATH
    assert trainer.experiment.prompt == "Which lands better? <b>"
    html = researcher_browser.get(PATH).content.decode()
    assert html.index("Which lands better? &lt;b&gt;</span>") < html.index("Which hops higher?</span>")
    assert "· <bdi>ada</bdi>" in html
    assert "· from the run" in html


@pytest.mark.both_databases
def test_concurrently_changed_prompt_is_not_overwritten(trainer: Trainer, researcher_browser: Client) -> None:
    for status, text in ((302, "Which lands better?"), (409, "Which is faster?")):
        form = {"prompt": text, "version": 1}
        assert researcher_browser.post(PATH + "prompt", form).status_code == status
    assert trainer.experiment.prompt == "Which lands better?"


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"prompt": " ", "version": 1}, "The prompt must not be empty."),
        ({"prompt": "a" * 2001, "version": 1}, "The prompt must not be longer than 2000 characters."),
        ({"prompt": "a\0b", "version": 1}, "Null characters are not allowed."),
        ({"prompt": "Which?", "version": "x"}, "Go back and reload the page."),
        ({}, "The prompt must not be empty."),
    ],
)
def test_invalid_prompts_are_refused(
    trainer: Trainer, researcher_browser: Client, form: dict[str, object], reason: str
) -> None:
    response = researcher_browser.post(PATH + "prompt", form)
    assert response.status_code == 400
    assert reason in response.content.decode()
    assert trainer.experiment.prompt_version == 1

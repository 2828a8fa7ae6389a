"""Pausing, resuming, finishing and rewording an experiment from its page or by a watch link."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import ApiToken, Experiment
from human_feedback_site.feedback.services.accounts import create_token, rotate_token, watch_url
from tests.site.conftest import RUN, Browser, Invited, Trainer

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


@pytest.fixture
def links(trainer: Trainer) -> dict[str, str]:
    """The two links that a run prints."""
    told = trainer.put()
    return {name: told[f"{name}_url"].removeprefix("http://testserver") for name in ("invite", "watch")}


def may_watch(client: Client) -> bool:
    """Return True if the browser may see the run and its comparisons, and may pause it: all or none."""
    gets = [client.get(f"{PATH}{page}").status_code for page in ("", "live", "comparisons", "finish")]
    Experiment.objects.update(state="running")
    client.post(f"{PATH}pause")
    allowed = gets == [200] * 4
    assert allowed or 200 not in gets
    assert (Experiment.objects.get().state == "paused") == allowed
    Experiment.objects.update(state="running")
    return allowed


@pytest.mark.parametrize("order", [("invite", "watch"), ("watch", "invite"), ("watch",)])
def test_both_links_in_one_browser_label_and_watch(links: dict[str, str], order: tuple[str, ...]) -> None:
    client = Client()
    for name in order:
        assert client.get(links[name]).status_code == 302
    assert may_watch(client)
    page, label = (client.get(PATH + each).content.decode() for each in ("", "label"))
    assert f'href="{PATH}label"' in page
    assert f'href="{PATH}"' in label
    assert f'href="{PATH}"' in client.get("/").content.decode()
    assert client.get("/admin/").status_code == 302


def test_labeler_without_link_only_labels(links: dict[str, str], invite: Invited) -> None:
    for client in (invite("zoe").client, Client()):
        if client.cookies.get("sessionid") is None:
            client.get(links["invite"])
        assert not may_watch(client)
        assert f'href="{PATH}"' not in client.get(f"{PATH}label").content.decode()


def test_watch_link_is_for_one_experiment(trainer: Trainer, links: dict[str, str], invite: Invited) -> None:
    other = Experiment.objects.create(owner=trainer.user, name="other", run_id=uuid4(), **RUN)
    zoe = invite("zoe").client
    account = zoe.get("/session").json()
    zoe.get(links["watch"])
    assert zoe.get("/session").json() == account
    assert zoe.get(PATH).status_code == 200
    assert zoe.get(f"/experiments/{other.name}/").status_code == 404


def test_watch_link_never_signs_staff_in(links: dict[str, str]) -> None:
    User.objects.filter(labeler__name="you").update(is_staff=True)
    client = Client()
    assert client.get(links["watch"]).headers["Location"] == f"/accounts/login/?next={PATH}"
    assert client.get("/session").json() == {"account": None}


def revoke(token: ApiToken) -> None:
    token.delete()


def expire(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def narrow(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(experiment="other")


def demote(token: ApiToken) -> None:
    User.objects.filter(pk=token.user_id).update(is_staff=False)


@pytest.mark.parametrize("end", [revoke, expire, rotate_token, narrow, demote])
def test_watch_link_ends_with_its_token(
    trainer: Trainer, links: dict[str, str], end: Callable[[ApiToken], object]
) -> None:
    watching = Client()
    watching.get(links["watch"])
    assert may_watch(watching)
    end(trainer.user.api_tokens.earliest("pk"))
    create_token(trainer.user, experiment="other")
    assert not may_watch(watching)
    late: Any = Client().get(links["watch"])
    assert (late.status_code, "last" in late.content.decode()) == (410, True)


def test_old_watch_link_has_expired(links: dict[str, str], settings: Settings) -> None:
    settings.INVITE_MAX_AGE_SECONDS = -1
    assert Client().get(links["watch"]).status_code == 410
    assert Client().get(links["watch"][:-1]).status_code == 404


def test_invitation_is_no_watch_link(trainer: Trainer, links: dict[str, str]) -> None:
    token = links["invite"].removeprefix("/j/")
    assert Client().get(f"/w/{token}").status_code == 410
    stranger = User.objects.create(username="eve", is_staff=True)
    create_token(stranger)
    forged = watch_url(trainer.experiment, "you", stranger.api_tokens.get(), "")
    assert Client().get(forged).status_code == 410

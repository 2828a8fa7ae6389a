"""Pausing, resuming, finishing and rewording an experiment from its page, and the links that open it."""

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
from human_feedback_site.feedback.pages.views import account_key
from human_feedback_site.feedback.services import limits
from human_feedback_site.feedback.services.accounts import create_token, owner_url, rotate_token
from human_feedback_site.private import random_code
from tests.site.conftest import RUN, Browser, Invited, Trainer, client_of

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
    assert "Paused: labelers get no new questions" in html
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
    assert researcher_browser.post(PATH + "prompt", form).headers["Location"] == f"{PATH}settings"
    assert trainer.experiment.prompt == "Which lands better? <b>"
    html = researcher_browser.get(f"{PATH}settings").content.decode()
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


SAVED = f"{PATH}settings?saved=1"


def settings_form(client: Client) -> dict[str, Any]:
    """Return what the form of the settings sends, with the values that it was opened with."""
    fields: Any = client.get(f"{PATH}settings").context["form"]
    shown = {bound.name: bound.value() for bound in fields} | {
        bound.html_initial_name: bound.value() for bound in fields
    }
    return {name: value for name, value in shown.items() if value is not False}


@pytest.mark.both_databases
def test_owner_sets_overlap_and_checks(trainer: Trainer, browser: Browser, links: dict[str, str]) -> None:
    trainer.register(2)
    browser.answer(browser.lease()[0])
    owner = Client()
    owner.get(links["owner"])
    assert f'href="{PATH}settings"' in owner.get(PATH).content.decode()
    form = settings_form(owner)
    assert 'id="reason"' not in browser.client.get(f"{PATH}label").content.decode()
    changed = {
        "overlap": 2,
        "gold_rate": 0.25,
        "aggregation": "majority",
        "min_watch_ms": 500,
        "asks_reasons": True,
    }
    response = owner.post(f"{PATH}settings", {**form, **changed, "show_episodes": ""})
    assert response.headers["Location"] == SAVED
    assert "The settings apply from now on." in owner.get(SAVED).content.decode()
    experiment = trainer.experiment
    assert {name: getattr(experiment, name) for name in changed} == changed
    assert (experiment.show_episodes, experiment.repeat_rate, experiment.stop_failures) == (False, 0.0, 5)
    assert trainer.decisions()["open"] == 2  # the answered one wants a second label
    assert {row.wanted for row in experiment.comparisons.all()} == {2}
    assert 'id="reason"' in browser.client.get(f"{PATH}label").content.decode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"overlap": 0},
        {"overlap": 10**20},
        {"overlap_share": 1.1},
        {"overlap_share": "nan"},
        {"aggregation": "mean"},
        {"gold_rate": -0.1},
        {"repeat_rate": ""},
        {"min_watch_ms": "a\0b"},
        {"stop_failures": 0},
    ],
)
def test_wrong_settings_are_refused(
    trainer: Trainer, researcher_browser: Client, wrong: dict[str, object]
) -> None:
    form = {**settings_form(researcher_browser), "warn_failures": 4, **wrong}
    response: Any = researcher_browser.post(f"{PATH}settings", form)
    assert response.status_code == 400
    assert list(response.context["form"].errors) == list(wrong)
    assert trainer.experiment.warn_failures == 3  # nothing is saved


def test_concurrently_changed_settings_are_kept(trainer: Trainer, researcher_browser: Client) -> None:
    form = settings_form(researcher_browser)
    Experiment.objects.update(overlap=2)
    unrelated = researcher_browser.post(f"{PATH}settings", {**form, "gold_rate": 0.5})
    assert unrelated.headers["Location"] == SAVED
    assert (trainer.experiment.overlap, trainer.experiment.gold_rate) == (2, 0.5)
    response = researcher_browser.post(f"{PATH}settings", {**form, "overlap": 3, "gold_rate": 0.5})
    assert response.status_code == 400
    assert "Someone else changed this to “2”" in response.content.decode()
    assert trainer.experiment.overlap == 2


def test_card_makes_and_ends_an_attention_check(trainer: Trainer, researcher_browser: Client) -> None:
    known, example = trainer.register(2)
    use = f"{PATH}examples/{known}"
    assert researcher_browser.post(use, {"better": "first", "check": ""}).status_code == 302
    pair = trainer.experiment.comparisons.get(uuid=known)
    assert (pair.status, pair.gold) == ("gold", "first")
    assert "attention check</span>" in researcher_browser.get(PATH).content.decode()
    assert researcher_browser.post(use, {"better": "first"}).status_code == 409  # labelers would learn it
    researcher_browser.post(f"{PATH}examples/{example}", {"better": "first", "explanation": "It lands."})
    shown = researcher_browser.post(f"{PATH}examples/{example}", {"better": "first", "check": ""})
    assert shown.status_code == 409
    for path in (f"{PATH}examples/{uuid4()}", f"/experiments/walker/examples/{known}"):
        assert researcher_browser.post(path, {"better": "first", "check": ""}).status_code == 404
    assert "It lands.</a>" in researcher_browser.get(f"{PATH}settings").content.decode()
    removed = researcher_browser.post(f"{PATH}examples/{example}/remove", {"from": "settings"})
    assert removed.headers["Location"] == f"{PATH}settings#examples"
    researcher_browser.post(f"{use}/remove")
    assert not trainer.experiment.comparisons.filter(status="gold").exists()


@pytest.fixture
def links(trainer: Trainer) -> dict[str, str]:
    """The link that a run prints, and the one for its labeler alone."""
    told = trainer.put()
    named = {"owner": "watch_url", "invite": "invite_url"}
    return {name: told[field].removeprefix("http://testserver") for name, field in named.items()}


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


@pytest.mark.parametrize("order", [("invite", "owner"), ("owner", "invite"), ("owner",)])
def test_owner_link_labels_and_watches(links: dict[str, str], order: tuple[str, ...]) -> None:
    client = Client()
    for name in order:
        to = client.get(links[name]).headers["Location"]
        assert to == {"owner": "/", "invite": f"{PATH}label"}[name]
    assert may_watch(client)
    page, label = (client.get(PATH + each).content.decode() for each in ("", "label"))
    assert f'href="{PATH}label"' in page
    assert f'href="{PATH}"' in label
    home = client.get("/").content.decode()
    assert home.index(f'class="button" href="{PATH}label"') < home.index(
        f'class="button quiet" href="{PATH}"'
    )
    assert client.get("/admin/").status_code == 302


def test_labeler_without_link_only_labels(links: dict[str, str], invite: Invited) -> None:
    for client in (invite("zoe").client, Client()):
        if client.cookies.get("sessionid") is None:
            client.get(links["invite"])
        assert not may_watch(client)
        assert f'href="{PATH}"' not in client.get(f"{PATH}label").content.decode()


def test_owner_link_is_for_one_experiment(trainer: Trainer, links: dict[str, str], invite: Invited) -> None:
    other = Experiment.objects.create(owner=trainer.user, name="other", run_id=uuid4(), **RUN)
    stranger = User.objects.create_user("eve")  # signed in, but not a labeler
    for client in (invite("zoe").client, client_of(stranger)):
        account = client.get("/session").json()
        client.get(links["owner"])
        assert client.get("/session").json() == account
        assert client.get(PATH).status_code == client.get(f"{PATH}label").status_code == 200
    zoe = client
    assert zoe.get(f"/experiments/{other.name}/").status_code == 404


def test_owner_link_never_signs_staff_in(links: dict[str, str]) -> None:
    User.objects.filter(labeler__name="you").update(is_staff=True)
    client = Client()
    assert client.get(links["owner"]).headers["Location"] == f"/accounts/login/?next={PATH}"
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
def test_owner_link_ends_with_its_token(
    trainer: Trainer, links: dict[str, str], end: Callable[[ApiToken], object]
) -> None:
    watching = Client()
    watching.get(links["owner"])
    assert may_watch(watching)
    end(trainer.user.api_tokens.earliest("pk"))
    create_token(trainer.user, experiment="other")
    assert not may_watch(watching)
    late: Any = Client().get(links["owner"])
    assert (late.status_code, "teach site" in late.content.decode()) == (410, True)


def test_old_owner_link_has_expired(links: dict[str, str], settings: Settings) -> None:
    settings.INVITE_MAX_AGE_SECONDS = -1
    assert Client().get(links["owner"]).status_code == 410
    assert Client().get(links["owner"][:-1]).status_code == 404


def test_forged_owner_links_open_nothing(trainer: Trainer, links: dict[str, str]) -> None:
    stranger = User.objects.create(username="eve", is_staff=True)
    create_token(stranger)
    numbers = links["owner"].rpartition("-")[0]
    assert len(links["owner"].rpartition("-")[2]) == 17  # 84 bits
    for forged in (
        owner_url(trainer.experiment, "you", stranger.api_tokens.get(), ""),
        f"{numbers}-{'2' * 17}",
        f"/j/1-{'2' * 17}",
        f"/j/zzzzzzzzzzzz-1-1-{'2' * 17}",
        f"/j/{'2' * 17}",
    ):
        client = Client()
        assert client.get(forged).status_code == 410
        assert client.get("/session").json() == {"account": None}
    kept = links["invite"].rpartition("-")
    assert Client().get(f"{kept[0]}-{kept[2]}{'2' * 7}").status_code == 410


def test_site_link_signs_the_admin_in(trainer: Trainer, settings: Settings, invite: Invited) -> None:
    code = settings.SIGN_IN_CODE = random_code()
    zoe = invite("zoe").client
    assert zoe.get(f"/j/{code}").status_code == 410  # there is no admin
    admin = User.objects.create_superuser("admin", password=None)
    for client in (Client(), zoe):
        assert client.get(f"/j/{code}").headers["Location"] == "/"
        assert client.get("/session").json()["account"] == account_key(admin)
        assert client.get("/admin/").status_code == 200
        assert client.get(PATH).status_code == 200
    for settings.SIGN_IN_CODE in (random_code(), ""):
        assert Client().get(f"/j/{code}").status_code == 410
    assert Client().get("/j/").status_code == 404


def test_wrong_links_are_counted(links: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WRONG_TOKENS", 2)
    wrong = f"/j/1-1-1-{'2' * 10}", f"/j/1-1-1-{'2' * 17}", "/join/x:y"
    answers = [Client().get(each) for each in wrong]
    assert [each.status_code for each in answers] == [404, 410, 429]
    assert 0 < int(answers[2].headers["Retry-After"]) <= 600
    assert Client().get(links["owner"]).status_code == 302  # a good one is never refused

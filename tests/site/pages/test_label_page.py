"""Test what the labeling page's script is given."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from human_feedback_site import feedback
from human_feedback_site.feedback.models import Invite, Labeler, Participation
from tests.site.conftest import Browser, Trainer

PATH = "/experiments/hopper/label"


def script_data(client: Client) -> dict[str, Any]:
    html = client.get(PATH).content.decode()
    found = re.search(r'<script id="page" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_only_invited_users_and_the_owner_may_label(
    trainer: Trainer, stranger: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    assert browser.client.get(PATH).status_code == 200
    assert researcher_browser.get(PATH).status_code == 200
    assert browser.client.get("/experiments/walker/label").status_code == 404
    assert browser.client.get("/experiments/nothing/label").status_code == 404
    response: Any = Client().get(PATH)
    assert response.headers["Location"] == f"/accounts/login/?next={PATH}"


def test_addresses_in_the_page_respond(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    data = script_data(browser.client)
    leases = browser.client.post(data["urls"]["leases"], {"count": 1}, content_type="application/json").json()
    assert len(leases["leases"]) == 1
    body = browser.label(leases["leases"][0])
    label = browser.client.post(data["urls"]["labels"], body, content_type="application/json")
    assert label.status_code == 201
    session = browser.client.get(data["urls"]["session"]).json()
    assert session == {"account": data["account"]}


def test_standing_answers_are_counted(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    labels = [browser.answer(lease) for lease in browser.lease(3)]
    browser.undo(labels[0])
    data = script_data(browser.client)
    assert (data["answered"], data["wanted"]) == (2, None)
    link = trainer.post(f"{trainer.path}/invites", {"labeler": "you"})["invite_url"]
    Invite.objects.update(answers_wanted=12)
    browser.client.get(link)
    data = script_data(browser.client)
    assert (data["answered"], data["wanted"]) == (0, 12)


def test_true_reward_is_hidden_from_labelers(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    html = browser.client.get(PATH).content.decode()
    assert "return" not in html
    assert "reward" not in html


@pytest.mark.django_db
def test_signed_out_user_gets_a_csrf_cookie() -> None:
    client = Client()
    assert client.get("/session").json() == {"account": None}
    assert client.cookies["csrftoken"].value


def test_accounts_of_two_sites_have_different_names(browser: Browser) -> None:
    user = Labeler.objects.get().user
    before = browser.client.get("/session").json()
    user.date_joined = user.date_joined.replace(year=2020)
    user.save()
    assert browser.client.get("/session").json() != before


def test_modules_are_preloaded(trainer: Trainer, browser: Browser) -> None:
    scripts = Path(feedback.__file__).resolve().parent / "static/feedback/js"
    wanted, unread = set[Path](), [scripts / "labeling/label.js"]
    while unread:
        script = unread.pop()
        found = re.findall(r'(?:from|import) "(\.[\w./]+\.js)"', script.read_text())
        imported = {(script.parent / each).resolve() for each in found} - wanted
        wanted |= imported
        unread += imported
    html = browser.client.get(PATH).content.decode()
    told = re.findall(r'rel="modulepreload" href="/static/feedback/js/([\w/]+\.js)"', html)
    assert {scripts / each for each in told} == wanted


def test_page_knows_what_can_be_undone(trainer: Trainer, browser: Browser) -> None:
    trainer.register(24)
    for practice in (True, False, False):
        comparison = trainer.experiment.comparisons.get(uuid=trainer.register()[0])
        trainer.experiment.examples.create(comparison=comparison, better="equal", practice=practice)
    labels = [browser.answer(lease)["uuid"] for _ in range(8) for lease in browser.lease(3)]
    browser.undo({"uuid": labels.pop()})
    data = script_data(browser.client)
    assert data["recent"] == labels[-20:]
    assert data["lessons"] == {"shown": 2, "practice": 1}


def test_names_and_prompts_are_escaped(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    browser = invite("you")
    prompt = "</script><img src=x onerror=alert(1)> \U0001f938 {{ 7 }}"
    trainer.put(prompt=prompt)
    Labeler.objects.update(name="<b>you</b>")
    html = browser.client.get(PATH).content.decode()
    assert "<img src=x" not in html
    assert "<b>you" not in html
    assert "\U0001f938 {{ 7 }}" in html
    assert html.count("</script>") == 2  # of the data and of the module


def test_new_clips_are_announced_only_while_expected(trainer: Trainer, browser: Browser) -> None:
    trainer.register(1)
    browser.answer(browser.lease(1)[0])
    Participation.objects.update(completed_at=Now(), completed_answers=1)
    for state, promised in (("running", True), ("finished", False)):
        trainer.put(state=state)
        html = browser.client.get("/experiments/hopper/done").content.decode()
        assert ("Your part is complete" in html, "Check for new clips" in html) == (True, promised)

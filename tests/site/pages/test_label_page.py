"""Test what the labeling page's script is given, a labeler's own answers, and the addresses of clips."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db.models.functions import Now
from django.test import Client

from human_feedback_site import feedback
from human_feedback_site.feedback.models import Experiment, Invite, Label, Labeler, Participation, Undo
from tests.site.conftest import Browser, Invited, Trainer, client_of
from tests.site.pages.conftest import html_of

PATH = "/experiments/hopper/label"


def script_data(client: Client) -> dict[str, Any]:
    html = client.get(PATH).content.decode()
    found = re.search(r'<script id="page" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


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


def test_names_and_prompts_are_escaped(trainer: Trainer, invite: Invited) -> None:
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


HISTORY_PATH = "/experiments/hopper/history"


def chosen(html: str) -> list[str]:
    return re.findall(r'value="(\w+)" aria-pressed="true"', html)


def read(browser: Browser) -> str:
    return browser.client.get(HISTORY_PATH).content.decode()


@pytest.mark.both_databases
def test_standing_answers_are_listed(trainer: Trainer, invite: Invited) -> None:
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
        response: Any = browser.client.post(f"{HISTORY_PATH}/{old['uuid']}", body)
        assert response.headers["Location"] == f"{HISTORY_PATH}?page=1#{body['uuid']}"
    assert chosen(read(browser)) == ["equal", "right"]
    assert (Label.objects.count(), Undo.objects.count()) == (3, 1)


def test_invalid_changes_are_refused(trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    one, other = invite("one"), invite("other")
    label = one.answer(one.lease()[0], "left")
    good = {"uuid": str(uuid4()), "choice": "right"}
    path = f"{HISTORY_PATH}/{label['uuid']}"
    for bad in ({"uuid": "x"}, {"choice": "first"}, {"choice": ""}):
        assert one.client.post(path, {**good, **bad}).status_code == 400
    assert one.client.post(path, {}).status_code == 400
    assert other.client.post(path, good).status_code == 404
    assert one.client.post(path, good).status_code == 302
    assert one.client.post(path, {**good, "uuid": str(uuid4())}).status_code == 409


def test_deleted_clips_are_marked(browser: Browser, label: Any) -> None:
    assert "<video" in read(browser)
    Experiment.objects.update(media_deleted_at="2999-01-01T00:00Z")
    assert "<video" not in read(browser)


def test_done_page_thanks_labelers(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    for lease in browser.lease(2):
        browser.answer(lease)
    assert "2 answers saved." in browser.client.get("/experiments/hopper/done").content.decode()


CLIP = re.compile(r'<video src="([^"]+)"')


def clips_on(client: Client, path: str) -> list[str]:
    return CLIP.findall(html_of(client, path))


def shown_at(client: Client, address: str) -> bytes:
    """Return what a browser plays that follows the address."""
    response: Any = client.get(address, follow=True)
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "video/mp4"
    return bytes(response.getvalue())


def distinguish(trainer: Trainer, uuid: str) -> None:
    """Let the two clips of a comparison be different files."""
    from human_feedback_site.feedback.media.store import FolderMedia, media_store

    store = media_store()
    assert isinstance(store, FolderMedia)
    for side in ("first", "second"):
        store.path(f"{trainer.name}/{uuid}/{side}.mp4").write_bytes(side.encode())


@pytest.mark.parametrize("page", ["", "comparisons", "comparisons/{}"])
def test_researchers_see_first_and_second(trainer: Trainer, researcher_browser: Client, page: str) -> None:
    [uuid] = trainer.register()
    distinguish(trainer, uuid)
    clips = clips_on(researcher_browser, f"/experiments/hopper/{page.format(uuid)}")
    assert [shown_at(researcher_browser, clip) for clip in clips] == [b"first", b"second"]
    # However old the page is: each time the link is another one that lasts.
    redirect = researcher_browser.get(clips[0])
    assert redirect.headers["Location"].startswith("/media/")
    assert "no-store" in redirect.headers["Cache-Control"]


def test_labelers_see_left_and_right(trainer: Trainer, browser: Browser) -> None:
    for uuid in trainer.register(8):
        distinguish(trainer, uuid)
    labels = [browser.answer(lease) for _ in range(2) for lease in browser.lease(4)]
    assert len(labels) == 8
    clips = clips_on(browser.client, "/experiments/hopper/history")
    newest_first = Label.objects.order_by("-lease")
    expected = [
        b"second" if swapped == (side == "left") else b"first"
        for swapped in newest_first.values_list("swapped", flat=True)
        for side in ("left", "right")
    ]
    assert [shown_at(browser.client, clip) for clip in clips] == expected
    assert not any("first" in clip or "second" in clip for clip in clips)


def test_managers_and_labelers_see_episodes(
    trainer: Trainer, stranger: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    address = "/experiments/hopper/episodes/700"
    trainer.film(700)
    for client in (researcher_browser, browser.client):
        shown_at(client, address)
        assert client.get("/experiments/hopper/episodes/800").status_code == 404
    assert not Labeler.objects.filter(user=trainer.user).exists()  # who looks does not become a labeler
    assert client_of(stranger.user).get(address).status_code == 404
    assert "/accounts/login/" in Client().get(address).headers["Location"]
    Experiment.objects.update(media_deleted_at="2999-01-01T00:00Z")
    assert browser.client.get(address).status_code == 404


def test_deleted_clip_is_not_found(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    [uuid] = trainer.register()
    label = browser.answer(browser.lease()[0])
    Experiment.objects.update(media_deleted_at="2999-01-01T00:00Z")
    assert researcher_browser.get(f"/experiments/hopper/comparisons/{uuid}/first").status_code == 404
    assert browser.client.get(f"/experiments/hopper/history/{label['uuid']}/right").status_code == 404

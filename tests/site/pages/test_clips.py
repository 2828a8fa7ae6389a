"""The addresses of clips on the pages: they last, and lead whoever may see a clip to a link that is fresh."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from human_feedback_site.feedback.models import Experiment, Label, Labeler
from tests.site.conftest import Browser, Trainer

CLIP = re.compile(r'<video src="([^"]+)"')


def clips_on(client: Client, path: str) -> list[str]:
    response = client.get(path)
    assert response.status_code == 200
    return CLIP.findall(response.content.decode())


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


def test_other_users_see_no_clips(
    trainer: Trainer, stranger: Trainer, invite: Callable[[str], Browser], signed_in: Callable[[User], Client]
) -> None:
    [uuid] = trainer.register()
    one, other = invite("one"), invite("other")
    label = one.answer(one.lease()[0])
    of_answer = f"/experiments/hopper/history/{label['uuid']}/left"
    of_comparison = f"/experiments/hopper/comparisons/{uuid}/first"
    assert one.client.get(of_answer).status_code == 302
    for client in (other.client, signed_in(stranger.user), signed_in(trainer.user)):
        assert client.get(of_answer).status_code == 404
    for client in (one.client, signed_in(stranger.user)):
        assert client.get(of_comparison).status_code == 404
    assert "/accounts/login/" in Client().get(of_comparison).headers["Location"]
    assert "/accounts/login/" in Client().get(of_answer).headers["Location"]


def test_managers_and_labelers_see_episodes(
    trainer: Trainer,
    stranger: Trainer,
    browser: Browser,
    researcher_browser: Client,
    signed_in: Callable[[User], Client],
) -> None:
    key, address = "hopper/episodes/700.mp4", "/experiments/hopper/episodes/700"
    trainer.upload(key)
    trainer.post(f"{trainer.path}/episodes", {"step": 700, "key": key})
    for client in (researcher_browser, browser.client):
        shown_at(client, address)
        assert client.get("/experiments/hopper/episodes/800").status_code == 404
    assert not Labeler.objects.filter(user=trainer.user).exists()  # who looks does not become a labeler
    assert signed_in(stranger.user).get(address).status_code == 404
    assert "/accounts/login/" in Client().get(address).headers["Location"]
    Experiment.objects.update(media_deleted_at="2999-01-01T00:00Z")
    assert browser.client.get(address).status_code == 404


def test_deleted_clip_is_not_found(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    [uuid] = trainer.register()
    label = browser.answer(browser.lease()[0])
    Experiment.objects.update(media_deleted_at="2999-01-01T00:00Z")
    assert researcher_browser.get(f"/experiments/hopper/comparisons/{uuid}/first").status_code == 404
    assert browser.client.get(f"/experiments/hopper/history/{label['uuid']}/right").status_code == 404

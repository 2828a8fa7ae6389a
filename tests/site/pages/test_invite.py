"""A researcher invites labelers from the experiment's page, each by a link of their own."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from human_feedback_site.feedback.models import Labeler
from tests.site.conftest import Browser, Trainer

PATH = "/experiments/hopper/invite"


def test_the_link_signs_the_new_labeler_in(trainer: Trainer, researcher_browser: Client) -> None:
    assert f'action="{PATH}"' in researcher_browser.get("/experiments/hopper/").content.decode()
    html = researcher_browser.post(PATH, {"labeler": " grace "}).content.decode()
    [link] = re.findall(r'<input id="link" value="http://testserver(/join/[^"]+)" readonly>', html)
    labeler = Client()
    labeling = labeler.get(link, follow=True)
    assert labeling.request["PATH_INFO"] == "/experiments/hopper/label"
    assert "This link is for “grace”." in labeling.content.decode()


@pytest.mark.parametrize("name", ["", "ada (owner)", "x" * 51, "<b>"])
def test_names_refused_by_the_api_are_refused(researcher_browser: Client, name: str) -> None:
    response = researcher_browser.post(PATH, {"labeler": name})
    assert response.status_code == 400
    assert "Use 1 to 50 letters" in response.content.decode()
    assert list(Labeler.objects.values_list("name", flat=True)) == ["you"]


def test_only_the_researcher_invites(
    trainer: Trainer, stranger: Trainer, browser: Browser, signed_in: Callable[[User], Client]
) -> None:
    for client in (browser.client, signed_in(stranger.user)):
        assert client.post(PATH, {"labeler": "grace"}).status_code == 404
    assert Client().post(PATH, {"labeler": "grace"}).status_code == 302
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(trainer.user)
    assert careful.post(PATH, {"labeler": "grace"}).status_code == 403
    assert not Labeler.objects.filter(name="grace").exists()


def test_blocked_cookies_are_reported(trainer: Trainer) -> None:
    client, link = Client(), trainer.put(invite="mia")["invite_url"]
    label = client.get(link).headers["Location"]
    client.cookies.clear()  # as the browser does
    page = client.get(label, follow=True).content.decode()
    assert "your browser blocks this site’s cookies." in page
    assert "just open your invitation link" not in page
    client.cookies["csrftoken"] = "x"  # a session that has expired
    page = client.get(label, follow=True).content.decode()
    assert "cookies" not in page
    assert "just open your invitation link" in page

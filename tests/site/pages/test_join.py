"""Invitations: who is signed in by which link."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client
from django.utils.http import base36_to_int, int_to_base36
from pytest_django import Settings

from human_feedback_site.feedback.models import Experiment, Labeler
from human_feedback_site.feedback.services import accounts
from human_feedback_site.feedback.services.accounts import make_code
from tests.site.conftest import Browser, Trainer


@pytest.fixture
def link(trainer: Trainer) -> str:
    url: str = trainer.put(invite="mia")["invite_url"]
    return url.removeprefix("http://testserver")


def signed_in_as(client: Client) -> str | None:
    account = client.get("/session").json()["account"]
    found = Labeler.objects.filter(user=account.split("-")[0]).first() if account else None
    return found.name if found else None


def test_link_signs_its_labeler_in(link: str) -> None:
    client = Client()
    response: Any = client.get(link)
    assert (response.status_code, response.headers["Location"]) == (302, "/experiments/hopper/label")
    assert signed_in_as(client) == "mia"
    assert not Labeler.objects.get(name="mia").user.has_usable_password()


def test_second_use_gives_the_same_labeler(link: str) -> None:
    for _ in range(2):
        assert signed_in_as_after(Client(), link) == "mia"
    assert Labeler.objects.filter(name="mia").count() == 1


def signed_in_as_after(client: Client, link: str) -> str | None:
    client.get(link)
    return signed_in_as(client)


def test_signed_in_user_is_asked_before_switching(
    link: str, invite: Callable[[str], Browser], researcher_browser: Client
) -> None:
    leo = invite("leo").client
    html = leo.get(link).content.decode()
    assert "Continue as mia" in html
    assert signed_in_as(leo) == "leo"
    response: Any = leo.post(link)
    assert response.headers["Location"] == "/experiments/hopper/label"
    assert signed_in_as(leo) == "mia"
    assert "Stay signed in as ada" in researcher_browser.get(link).content.decode()


def test_switching_needs_a_csrf_token(link: str, trainer: Trainer) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(trainer.user)
    response = client.post(link)
    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()


@pytest.mark.parametrize("forged", ["{link}x", "{link}:x", "/join/abc"])
def test_forged_link_is_invalid(link: str, forged: str) -> None:
    client = Client()
    response = client.get(forged.format(link=link))
    assert response.status_code == 404
    assert "not valid" in response.content.decode()
    assert signed_in_as(client) is None


def test_run_link_is_short_and_unguessable(link: str, trainer: Trainer, settings: Settings) -> None:
    experiment, labeler = trainer.experiment, Labeler.objects.get(name="mia")
    assert re.fullmatch(r"/j/[0-9a-z-]+", link)
    assert len(link) <= 24
    one, two, hour, signature = link.removeprefix("/j/").split("-")
    other = accounts.invite(experiment, "noa")
    for forged in (
        f"{one}-{int_to_base36(other.pk)}-{hour}-{signature}",
        f"{int_to_base36(experiment.pk + 1)}-{two}-{hour}-{signature}",
        f"{one}-{two}-{int_to_base36(base36_to_int(hour) + 1)}-{signature}",
        f"{one}-{two}-{hour}-{'2' * 10}",
        make_code(experiment.pk, labeler.pk, "feedback.watch"),
    ):
        assert Client().get(f"/j/{forged}").status_code == 404
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "a new key", [settings.SECRET_KEY]
    assert signed_in_as_after(Client(), link) == "mia"
    settings.SECRET_KEY_FALLBACKS = []
    assert Client().get(link).status_code == 404


def test_links_of_earlier_versions_still_work(link: str, trainer: Trainer) -> None:
    claims = {"experiment": trainer.experiment.pk, "labeler": "mia"}
    old = f"/join/{signing.dumps(claims, salt=accounts.INVITE_SALT)}"
    assert signed_in_as_after(Client(), old) == "mia"


def test_link_of_a_deleted_experiment_is_invalid(link: str) -> None:
    Experiment.objects.all().delete()
    assert Client().get(link).status_code == 404


def test_old_link_has_expired(link: str, settings: Settings) -> None:
    settings.INVITE_MAX_AGE_SECONDS = -1
    client = Client()
    response = client.get(link)
    assert response.status_code == 410
    assert "expired" in response.content.decode()
    assert signed_in_as(client) is None


def test_removed_labeler_stays_out(link: str) -> None:
    User.objects.filter(labeler__name="mia").update(is_active=False)
    assert_withdrawn(link)


def assert_withdrawn(link: str) -> None:
    client = Client()
    response = client.get(link)
    assert response.status_code == 410
    assert "withdrawn" in response.content.decode()
    assert signed_in_as(client) is None


def test_old_link_does_not_readmit_a_removed_labeler(trainer: Trainer, link: str) -> None:
    Client().get(link)
    Labeler.objects.get(name="mia").experiments.clear()
    trainer.put(invite="mia")  # a run that goes on invites nobody again
    assert_withdrawn(link)
    trainer.post(f"{trainer.path}/invites", {"labeler": "mia"})
    assert signed_in_as_after(Client(), link) == "mia"


def test_a_labeler_can_be_invited_to_a_second_experiment(trainer: Trainer) -> None:
    second = type(trainer)(trainer.user, "cheetah")
    links = [each.put(invite="you")["invite_url"] for each in (trainer, second)]
    for link in links:
        assert signed_in_as_after(Client(), link) == "you"


def test_link_gives_no_admin_access(link: str) -> None:
    User.objects.filter(labeler__name="mia").update(is_staff=True)
    client = Client()
    response: Any = client.get(link)
    assert response.headers["Location"] == "/accounts/login/?next=%2Fexperiments%2Fhopper%2Flabel"
    assert signed_in_as(client) is None
    assert client.post(link).headers["Location"].startswith("/accounts/login/")
    assert signed_in_as(client) is None
    client.force_login(User.objects.get(labeler__name="mia"))
    response = client.get(link)
    assert response.headers["Location"] == "/experiments/hopper/label"

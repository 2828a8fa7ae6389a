"""Invitations and accounts: who is signed in by which link, and how people are invited, sign in and out."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client, RequestFactory
from django.utils.http import base36_to_int, int_to_base36
from pytest_django import Settings

from human_feedback_site.feedback.api import problems
from human_feedback_site.feedback.models import Experiment, Labeler
from human_feedback_site.feedback.services import accounts
from human_feedback_site.feedback.services.accounts import make_code
from tests.site.conftest import Browser, Invited, SignedIn, Trainer


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
    link: str, invite: Invited, researcher_browser: Client
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
    assert_refused(forged.format(link=link), 404, "not valid")


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
    assert_refused(link, 410, "expired")


def test_removed_labeler_stays_out(link: str) -> None:
    User.objects.filter(labeler__name="mia").update(is_active=False)
    assert_refused(link, 410, "withdrawn")


def assert_refused(link: str, status: int, word: str) -> None:
    client = Client()
    response = client.get(link)
    assert response.status_code == status
    assert word in response.content.decode()
    assert signed_in_as(client) is None


def test_old_link_does_not_readmit_a_removed_labeler(trainer: Trainer, link: str) -> None:
    Client().get(link)
    Labeler.objects.get(name="mia").experiments.clear()
    trainer.put(invite="mia")  # a run that goes on invites nobody again
    assert_refused(link, 410, "withdrawn")
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


PASSWORD = "a-long-enough-password"


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def test_signing_in_leads_back_to_where_one_was(ada: User) -> None:
    client = Client()
    page = client.get("/accounts/login/?next=/experiments/hopper/label").content.decode()
    assert 'value="/experiments/hopper/label"' in page
    body = {"username": "ada", "password": PASSWORD, "next": "/experiments/hopper/label"}
    response: Any = client.post("/accounts/login/", body)
    assert response.headers["Location"] == "/experiments/hopper/label"


def test_a_wrong_password_is_said_and_the_name_kept(ada: User) -> None:
    html = Client().post("/accounts/login/", {"username": "ada", "password": "wrong"}).content.decode()
    assert "Incorrect name or password." in html
    assert 'value="ada"' in html
    assert "wrong" not in html.replace("Incorrect name or password.", "")


def test_signing_out_ends_the_session(browser: Browser) -> None:
    response: Any = browser.client.post("/accounts/logout/")
    assert response.headers["Location"] == "/accounts/login/"
    assert browser.client.get("/session").json() == {"account": None}


@pytest.mark.django_db
@pytest.mark.parametrize("language", ["zh-CN", "zh-Hans", "zh-SG,zh;q=0.8", "zh"])
def test_chinese_browsers_get_chinese(language: str) -> None:
    html = Client(headers={"Accept-Language": language}).get("/accounts/login/").content.decode()
    assert "登录" in html
    assert "Sign in" not in html


@pytest.mark.django_db
def test_the_switch_remembers_the_language_and_returns() -> None:
    client = Client()
    response: Any = client.post("/i18n/setlang/", {"language": "zh-hans", "next": "/accounts/login/?next=/x"})
    assert response.headers["Location"] == "/accounts/login/?next=/x"
    assert "登录" in client.get("/accounts/login/").content.decode()
    client.post("/i18n/setlang/", {"language": "en", "next": "/"})
    assert "Sign in" in client.get("/accounts/login/").content.decode()


@pytest.mark.django_db
def test_an_address_without_a_page_says_so() -> None:
    response = Client().get("/nothing-here")
    assert response.status_code == 404
    assert "Page not found" in response.content.decode()


def test_a_failure_has_a_page_that_needs_nothing() -> None:
    response = problems.server_error(RequestFactory().get("/"))
    assert response.status_code == 500
    assert "none of your answers were lost" in response.content.decode()


def test_a_page_that_is_not_allowed_says_so() -> None:
    response = problems.permission_denied(RequestFactory().get("/"), PermissionError())
    assert response.status_code == 403
    assert "You don’t have access to this page" in response.content.decode()


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
    trainer: Trainer, stranger: Trainer, browser: Browser, signed_in: SignedIn
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

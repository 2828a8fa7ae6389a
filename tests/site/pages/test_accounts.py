"""Signing in and out, languages, and pages for what goes wrong."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from human_feedback_site.feedback.api import problems
from tests.site.conftest import Browser

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

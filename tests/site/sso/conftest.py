"""A site with single sign-on, and people before it with browsers of a few lines."""

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import requests
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_url_caches
from pytest_django import Settings

from human_feedback_site import urls
from human_feedback_site.feedback.pages.sso import provider
from tests.identity_provider import IdentityProvider
from tests.identity_provider_site import PASSWORD, PEOPLE
from tests.site.conftest import settings_of
from tests.waiting import free_port

SITE = "http://testserver"
Configure = Callable[[dict[str, str]], None]


class Person:
    """Somebody with one browser, at the site and at the provider.

    Attributes:
        client: the browser before the site.
        session: the browser before the provider.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.client = Client()
        self.session = requests.Session()

    def sign_in(self, next_page: str = "") -> Any:
        """Press the button on the sign-in page; return where the site leads in the end."""
        return self.client.get(self.visit_provider(self.leave(next_page)))

    def leave(self, next_page: str = "") -> str:
        """Press the button; return the address at the provider to which it leads."""
        response: Any = self.client.get("/accounts/sso/", {"next": next_page} if next_page else {})
        assert response.status_code == 302, response.content.decode()
        return str(response.headers["Location"])

    def visit_provider(self, address: str) -> str:
        """Go to the provider, with the password if it asks; return the address at the site that follows."""
        response = self.session.get(address, allow_redirects=False)
        while True:
            if response.is_redirect:
                address = urljoin(address, response.headers["Location"])
                if address.startswith(SITE):
                    return address.removeprefix(SITE)
                response = self.session.get(address, allow_redirects=False)
            else:
                token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', response.text)
                assert token, response.text
                assert "errorlist" not in response.text, "The provider refuses."
                data = {"username": self.name, "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
                response = self.session.post(address, data, allow_redirects=False)

    @property
    def user(self) -> User:
        """The user who is signed in at the site."""
        return User.objects.get(pk=self.client.session["_auth_user_id"])

    @property
    def is_signed_in(self) -> bool:
        """Return whether the site knows who this is."""
        return self.client.get("/session").json()["account"] is not None


@pytest.fixture(scope="session")
def provider_at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    """A provider for all tests of a process."""
    found = IdentityProvider(tmp_path_factory.mktemp("provider"), free_port())
    with found.serving(SITE):
        yield found


@pytest.fixture
def configure(settings: Settings, tmp_path: Path) -> Iterator[Configure]:
    """Configure the site by environment variables of single sign-on."""
    provider.metadata.cache_clear()

    def configure(variables: dict[str, str]) -> None:
        for name, value in settings_of(TEACHER_STATE_DIR=str(tmp_path), **variables).items():
            if name.startswith("OIDC_") or name in {"SINGLE_SIGN_ON", "AUTHENTICATION_BACKENDS"}:
                setattr(settings, name, value)
        _load_urls()

    yield configure
    settings.SINGLE_SIGN_ON = False
    _load_urls()
    provider.metadata.cache_clear()


def _load_urls() -> None:
    importlib.reload(urls)
    clear_url_caches()


@pytest.fixture
def at_provider(
    db: None, provider_at_work: IdentityProvider, configure: Configure
) -> Iterator[IdentityProvider]:
    """The provider where people sign in; afterward its users are as they were."""
    configure(provider_at_work.variables)
    yield provider_at_work
    for name, group in PEOPLE.items():
        provider_at_work.set_active(name, active=True)
        provider_at_work.set_group(name, group)


@pytest.fixture
def person(at_provider: IdentityProvider) -> Callable[[str], Person]:
    """Make people by their name at the provider."""
    return Person

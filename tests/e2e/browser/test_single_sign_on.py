"""Single sign-on in a browser: a labeler and a researcher, at a real provider and a site with gunicorn."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.databases import Using
from tests.e2e.browser.conftest import PATIENCE_MS, faults
from tests.identity_provider import IdentityProvider
from tests.identity_provider_site import PASSWORD
from tests.site.production.conftest import Production
from tests.waiting import free_port


@pytest.fixture
def provider(tmp_path_factory: pytest.TempPathFactory) -> IdentityProvider:
    """A provider that does not run yet."""
    return IdentityProvider(tmp_path_factory.mktemp("provider"), free_port())


@pytest.fixture
def url(
    browser: Browser, provider: IdentityProvider, migrated_database: Path, tmp_path: Path, using: Using
) -> Iterator[str]:
    """Return where the site is; people sign in at the provider, which runs."""
    database = f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'site.sqlite3')}"
    site = Production(database, tmp_path, using)
    site.start(WEB_CONCURRENCY="1", TEACHER_PUBLIC_URL="", OIDC_NAME="Example Lab", **provider.variables)
    with provider.serving(site.url):
        yield site.url
    site.stop()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page of a fresh profile, in which the content security policy stops nothing."""
    context = browser.new_context(locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    context.on("console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None)
    yield context.new_page()
    context.close()
    assert faults == []


def press_the_button(page: Page) -> None:
    page.get_by_role("link", name="Sign in with Example Lab").click()


def sign_in_at_provider(page: Page, name: str) -> None:
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_people_come_and_go(page: Page, url: str, provider: IdentityProvider) -> None:
    page.goto(url)
    assert faults(page) == []
    press_the_button(page)
    sign_in_at_provider(page, "mia")
    expect(page).to_have_url(f"{url}/")
    expect(page.get_by_role("heading", name="Nothing to label yet")).to_be_visible()
    expect(page.locator(".account")).to_have_text("mia (SSO)")

    provider.set_group("mia", "researchers")
    page.context.clear_cookies(name="sessionid")  # of the site alone: the provider asks nothing
    page.goto(url)
    press_the_button(page)
    expect(page.get_by_role("heading", name="No experiments yet")).to_be_visible()

    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{url}/accounts/login/")
    press_the_button(page)
    expect(page.get_by_label("Username")).to_be_visible()  # it asks, as it has no session either

    provider.set_active("mia", active=False)
    sign_in_at_provider(page, "mia")
    expect(page.get_by_text("Please enter a correct username and password.")).to_be_visible()
    page.goto(url)
    expect(page.get_by_role("link", name="Sign in with Example Lab")).to_be_visible()

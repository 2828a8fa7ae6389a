"""Sites at https://host/teacher and with single sign-on in a browser: labelers, researchers and an admin."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.databases import Using
from tests.e2e.browser.conftest import PATIENCE_MS, LabelingPage, faults
from tests.identity_provider import IdentityProvider
from tests.identity_provider_site import PASSWORD as PROVIDER_PASSWORD
from tests.reverse_proxy import PASSWORD, Below, below_a_path
from tests.site.production.conftest import Production
from tests.waiting import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def below(
    browser: Browser,
    migrated_database: Path,
    clips: tuple[Path, Path],
    tmp_path: Path,
    using: Using,
) -> Iterator[Below]:
    """A site behind a proxy that cuts the path off, with clips that a browser can play."""
    database = f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'site.sqlite3')}"
    with below_a_path(Production(database, tmp_path, using), using) as below:
        below.proxy.cuts = True
        below.clips = (clips[0].read_bytes(), clips[1].read_bytes())
        yield below
        assert below.proxy.astray == []


@contextmanager
def fresh_profile(browser: Browser) -> Iterator[tuple[BrowserContext, list[str]]]:
    """A profile, and a list of its faults, which is to stay empty."""
    context, faults = browser.new_context(locale="en-US"), list[str]()
    context.set_default_timeout(PATIENCE_MS)
    yield context, faults
    context.close()
    assert faults == []


@pytest.fixture
def page(browser: Browser, below: Below) -> Iterator[Page]:
    """A page of a fresh profile, in which nothing fails whatever a test does."""
    with fresh_profile(browser) as (context, faults):
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("response", lambda each: faults.append(each.url) if each.status >= 400 else None)
        yield context.new_page()


def test_everybody_finds_everything_below_the_path(below: Below, page: Page) -> None:
    experiment = below.put("walk", pairs=3)
    labeling = LabelingPage(page)
    labeling.open(experiment.invite_url)
    expect(page).to_have_url(experiment.label_url)
    labeling.answer("ArrowLeft", 1)
    labeling.answer("ArrowRight", 2)
    page.keyboard.press("z")
    labeling.expect_saved(1)
    labeling.answer("ArrowUp", 2)
    page.keyboard.press("h")
    expect(page).to_have_url(f"{below.url}/experiments/{experiment.name}/history")
    expect(page.locator("video")).to_have_count(4)
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    page.get_by_role("button", name="English").click()
    expect(page).to_have_url(f"{below.url}/experiments/{experiment.name}/history")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{below.url}/accounts/login/")

    page.goto(f"{below.url}/admin/")
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{below.url}/admin/")
    page.get_by_role("link", name="View site").click()
    expect(page).to_have_url(f"{below.url}/")
    page.get_by_role("link", name=experiment.name, exact=True).click()
    expect(page).to_have_url(experiment.page_url)
    with page.expect_response(f"{experiment.page_url}live"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    page.goto(f"{below.url}/api/docs/")
    expect(page.locator(".servers option")).to_have_attribute("value", "/teacher")
    expect(page.get_by_text("/api/v1/labels", exact=True)).to_be_visible()


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
def sso_page(browser: Browser, url: str) -> Iterator[Page]:
    """A page of a fresh profile, in which the content security policy stops nothing."""
    with fresh_profile(browser) as (context, faults):
        csp = "Security Policy"
        context.on("console", lambda said: faults.append(said.text) if csp in said.text else None)
        yield context.new_page()


def press_the_button(sso_page: Page) -> None:
    sso_page.get_by_role("link", name="Sign in with Example Lab").click()


def sign_in_at_provider(sso_page: Page, name: str) -> None:
    sso_page.get_by_label("Username").fill(name)
    sso_page.get_by_label("Password").fill(PROVIDER_PASSWORD)
    sso_page.get_by_role("button", name="Sign in").click()


def test_people_come_and_go(sso_page: Page, url: str, provider: IdentityProvider) -> None:
    sso_page.goto(url)
    assert faults(sso_page) == []
    press_the_button(sso_page)
    sign_in_at_provider(sso_page, "mia")
    expect(sso_page).to_have_url(f"{url}/")
    expect(sso_page.get_by_role("heading", name="Nothing to label yet")).to_be_visible()
    expect(sso_page.locator(".account")).to_have_text("mia (SSO)")

    provider.set_group("mia", "researchers")
    sso_page.context.clear_cookies(name="sessionid")  # of the site alone: the provider asks nothing
    sso_page.goto(url)
    press_the_button(sso_page)
    expect(sso_page.get_by_role("heading", name="No experiments yet")).to_be_visible()

    sso_page.get_by_role("button", name="Sign out").click()
    expect(sso_page).to_have_url(f"{url}/accounts/login/")
    press_the_button(sso_page)
    expect(sso_page.get_by_label("Username")).to_be_visible()  # it asks, as it has no session either

    provider.set_active("mia", active=False)
    sign_in_at_provider(sso_page, "mia")
    expect(sso_page.get_by_text("Please enter a correct username and password.")).to_be_visible()
    sso_page.goto(url)
    expect(sso_page.get_by_role("link", name="Sign in with Example Lab")).to_be_visible()

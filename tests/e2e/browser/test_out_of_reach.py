"""The labeling page when its experiment ends, or its site cannot be reached, while nobody looks at it."""

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.conftest import LabelingPage, Site

HIDDEN = "Object.defineProperty(document, 'hidden', { get: () => window.away === true, configurable: true })"
IDLE_MS = 125_000


@pytest.fixture
def at_it(site: Site, labeling: LabelingPage) -> LabelingPage:
    """The page with one answer given and two pairs left."""
    site.add(3)
    labeling.page.clock.install()
    labeling.open(site.invite())
    labeling.page.evaluate(HIDDEN)
    with labeling.page.expect_response(lambda reply: reply.url.endswith("/leases")):
        labeling.press("ArrowLeft")
    labeling.expect_saved(1)
    labeling.wait_for("judging")
    return labeling


def hide(labeling: LabelingPage) -> None:
    """Go to another tab. The page asks once more."""
    with labeling.page.expect_response(lambda reply: reply.url.endswith("/progress")):
        labeling.page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")


def come_back(labeling: LabelingPage) -> None:
    labeling.page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def lose_connection(labeling: LabelingPage) -> None:
    labeling.page.context.set_offline(offline=True)


def expect_no_word_of_going_on(labeling: LabelingPage) -> None:
    expect(labeling.page.locator("#away")).to_be_hidden()
    expect(labeling.page.get_by_text("You can keep answering")).to_be_hidden()


@pytest.mark.parametrize("hidden", [True, False])
def test_a_page_that_nobody_looks_at_hears_of_the_end(site: Site, at_it: LabelingPage, hidden: bool) -> None:
    if hidden:
        hide(at_it)
    else:
        at_it.page.clock.fast_forward(IDLE_MS)
    site.set(state="finished")
    at_it.page.clock.run_for(31_000)
    at_it.wait_for("finished")
    lose_connection(at_it)
    with at_it.page.expect_event("requestfailed", lambda request: "/leases" in request.url):
        come_back(at_it)
    panel = at_it.page.locator("[data-panel=finished]")
    expect(panel).to_contain_text("Your answers: 1")
    expect(panel.get_by_role("link")).to_be_hidden()  # it would lead nowhere
    expect_no_word_of_going_on(at_it)
    address = at_it.page.url
    at_it.page.keyboard.press("h")
    at_it.page.wait_for_timeout(100)
    assert at_it.page.url == address
    at_it.wait_for("finished")


def test_a_page_that_comes_back_says_that_the_site_is_unreachable(at_it: LabelingPage) -> None:
    page = at_it.page
    panel = page.locator("[data-panel=unreachable]")
    for gone in ("hidden", "idle", "asleep", "asleep without a connection"):
        if gone == "hidden":
            hide(at_it)
        elif gone == "idle":
            page.clock.fast_forward(IDLE_MS)
        lose_connection(at_it)
        if "asleep" in gone:
            if "without" in gone:
                with page.expect_event("requestfailed"):
                    page.clock.run_for(10_000)
                expect(page.locator("#away")).to_be_visible()
            page.clock.fast_forward(60_000)
        else:
            page.clock.run_for(10_000)
            page.mouse.move(5, 5)
            come_back(at_it)
        at_it.wait_for("unreachable")
        expect(panel).to_contain_text("The site can’t be reached")
        expect(panel.get_by_text("The site has received all your answers")).to_be_visible()
        expect(panel.get_by_text("Kept in this browser")).to_be_hidden()
        expect_no_word_of_going_on(at_it)
        panel.get_by_role("button", name="Try again").click()
        expect(at_it.toast).to_have_text("The site still can’t be reached.")
        at_it.wait_for("unreachable")
        page.context.set_offline(offline=False)
        panel.get_by_role("button", name="Try again").click()
        at_it.wait_for("judging")
        page.clock.run_for(1_000)


def test_loaded_pairs_may_be_judged_offline(at_it: LabelingPage) -> None:
    page = at_it.page
    hide(at_it)
    lose_connection(at_it)
    page.clock.run_for(1_000)
    come_back(at_it)  # a glance at another tab interrupts nobody
    expect(page.locator("#away")).to_contain_text("You can keep answering: your answers are kept")
    at_it.wait_for("judging")
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(10_000)
    come_back(at_it)
    at_it.wait_for("unreachable")
    page.get_by_role("button", name="Keep judging the loaded pairs").click()
    at_it.wait_for("judging")
    page.clock.run_for(1_000)
    page.keyboard.press("ArrowLeft")
    expect(at_it.unsaved).to_have_text("Unsaved 1")
    expect(page.locator("#away")).to_contain_text("You can keep answering: your answers are kept")
    page.clock.run_for(20_000)
    at_it.wait_for("judging")  # asking in vain once more changes nothing
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(10_000)
    come_back(at_it)
    at_it.wait_for("unreachable")
    panel = page.locator("[data-panel=unreachable]")
    expect(panel.get_by_text("Kept in this browser")).to_contain_text("the site is back: 1")
    expect(panel.get_by_text("The site has received all your answers")).to_be_hidden()
    page.context.set_offline(offline=False)  # an answer that waits is sent without being asked
    at_it.expect_saved(2)
    at_it.wait_for("judging")


def test_a_film_on_a_phone_does_not_cover_what_is_said(site: Site, at_it: LabelingPage) -> None:
    page = at_it.page
    page.set_viewport_size({"width": 360, "height": 740})
    site.film(100)
    hide(at_it)
    come_back(at_it)
    page.get_by_role("button", name="Episode").click()
    expect(page.locator("#episode")).to_be_visible()
    hide(at_it)
    lose_connection(at_it)
    page.clock.run_for(10_000)
    come_back(at_it)
    at_it.wait_for("unreachable")
    expect(page.locator("#episode")).to_be_hidden()

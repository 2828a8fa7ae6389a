"""The experiment page in a browser: it stays up to date, and leaves alone what its reader does."""

from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from human_feedback_site.feedback.models import TrainingPoint
from human_feedback_site.feedback.services import experiments
from tests.e2e.browser.conftest import LabelingPage, Site

PASSWORD = "a-long-enough-password"


@pytest.fixture
def watching(site: Site, page: Page, labeling: LabelingPage) -> Page:
    """The page of the experiment before its researcher, with one film."""
    site.film(100)
    page.goto(f"{site.url}/experiments/hopper/")
    labeling.sign_in("ada")
    expect(page.locator("#film-100")).to_be_visible()
    return page


def look_again(page: Page) -> None:
    """Do what a return to the tab does: look for news at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def until(page: Page, selector: str, text: str) -> None:
    """Look for news until they are there; one look may be on its way while something happens."""
    while page.locator(selector).get_by_text(text).count() == 0:
        with page.expect_response(lambda reply: reply.url.endswith("/live")):
            look_again(page)


def test_news_come_and_what_is_looked_at_goes_on(site: Site, watching: Page) -> None:
    page = watching
    video = page.locator("#film-100 video")
    video.evaluate("(video) => { video.id_kept = true; return video.play(); }")
    page.get_by_text("Change the prompt").first.click()
    page.locator("textarea[name=prompt]").fill("Which one")
    page.evaluate("scrollTo(0, 120)")

    site.film(200)
    TrainingPoint.objects.create(experiment=site.experiment, step=5, tag="predictor/accuracy", value=0.75)
    until(page, "#pace", "75%")

    expect(page.locator("#films li")).to_have_count(2)
    expect(page.locator("figure.curve")).to_have_count(1)
    kept: dict[str, Any] = video.evaluate("({ id_kept, paused }) => ({ id_kept, paused })")
    assert kept == {"id_kept": True, "paused": False}
    expect(page.locator("textarea[name=prompt]")).to_have_value("Which one")
    expect(page.locator("textarea[name=prompt]")).to_be_focused()
    assert page.evaluate("scrollY") == 120

    site.set(trainer_seen_at=timezone.now(), trainer_left_at=timezone.now())
    until(page, "#away", "The run was stopped on")
    expect(page.locator("#away time")).not_to_contain_text("UTC")
    site.set(trainer_left_at=None)

    experiments.pause(type(site.experiment).objects.all())
    until(page, "#live-head", "Paused:")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()

    page.get_by_role("link", name="Finish").click()
    page.get_by_role("button", name="Finish the experiment").click()
    expect(page.get_by_text("Finished: no more labels are requested.")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    look_again(page)
    page.evaluate("fetch('/session')")  # requests leave in their order
    assert [address for address in asked if address.endswith("/live")] == []


def test_a_page_that_is_signed_out_says_so(watching: Page) -> None:
    page = watching
    page.context.clear_cookies()
    look_again(page)
    expect(page.get_by_text("You are signed out")).to_be_visible()

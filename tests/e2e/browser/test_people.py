"""Test the way of labelers from an invitation to the end, and the experiment page that researchers see."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Dialog, Page, expect

from human_feedback_site.feedback.models import (
    Arrival,
    Comparison,
    Decision,
    Experiment,
    Invite,
    Labeler,
    Participation,
    TrainingPoint,
)
from human_feedback_site.feedback.services import accounts, experiments, invites, wording
from tests.e2e.browser.conftest import LabelingPage, Site, faults
from tests.site.conftest import new_invite

Make = Callable[..., Invite]
Faults = Callable[[Page], list[str]]


@pytest.fixture
def make(site: Site) -> Make:
    """Make a link for many that asks each for one answer."""

    def make(**changes: object) -> Invite:
        return new_invite(site.experiment, **{"answers_wanted": 1, **changes})

    return make


def test_last_answer_ends_the_part(site: Site, labeling: LabelingPage, page: Page, make: Make) -> None:
    site.add(2)
    link = make(completion_code="DONE-1", return_url=invites.PROLIFIC_RETURN_URL)
    page.goto(invites.link_of(link, site.url))
    page.get_by_role("button", name="Start").click()
    labeling.wait_for("judging")
    page.route("**/api/v1/labels", lambda route: route.abort())
    labeling.press("ArrowLeft")
    expect(labeling.unsaved).to_contain_text("1")
    assert page.url == site.label_url  # what is unsaved is sent first
    page.unroute("**/api/v1/labels")
    labeling.come_back()
    expect(page.get_by_role("heading", name="Thank you!")).to_be_visible()
    expect(page.locator("main")).to_contain_text("1 answer saved.")
    expect(page.locator("main")).to_contain_text("DONE-1")
    assert len(site.labels()) == 1
    expect(page.get_by_role("link", name="Return to the platform")).to_be_visible()
    assert faults(page) == []


def test_another_text_is_agreed_to_before_the_next_pair(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    site.add(2)
    wording.set_text(site.experiment, "We keep your answers.")
    page.goto(site.invite())
    page.get_by_role("button", name="I agree").click()
    labeling.wait_for("judging")
    labeling.answer("ArrowLeft", 1)
    wording.set_text(site.experiment, "We keep your answers and your name.")
    labeling.come_back()
    expect(page.get_by_text("We keep your answers and your name.")).to_be_visible()
    page.get_by_role("button", name="I do not agree").click()
    expect(page.get_by_role("heading", name="Goodbye, and thank you")).to_be_visible()
    page.get_by_role("link", name="Read the consent text again").click()
    page.get_by_role("button", name="I agree").click()
    labeling.wait_for("judging")
    expect(labeling.answered).to_have_text("1")


@pytest.fixture
def busy(site: Site, make: Make) -> str:
    """A site whose pages are full: links in each state, somebody from a platform, pairs in each state."""
    wording.set_text(site.experiment, "We keep your answers.\n\nAnd nothing else.")
    sent = invites.PlatformParticipant("5" * 24, "6" * 24, "7" * 24)
    platform = make(platform="prolific", limit=3, note="The first of two studies")
    arrived = invites.admit(platform, sent)
    make(note="Used up", limit=1, uses=1)
    make(note="Revoked", revoked_at=timezone.now())
    invites.invite_by_name(site.experiment, "mia")
    accounts.participation_of(Labeler.objects.get(name="mia"), site.experiment)
    Participation.objects.filter(labeler=arrived).update(stopped_at=timezone.now())
    site.add(1)
    decided = Comparison.objects.get(uuid=site.add(1)[0])
    Comparison.objects.filter(pk=decided.pk).update(status=Comparison.Status.ANSWERED, n_labels=3, wanted=3)
    said = {"comparison": decided, "decision": "second", "probability": 0.02, "n_labels": 3}
    Decision.objects.create(experiment=site.experiment, seq=1, **said)
    gold = Comparison.objects.filter(uuid__in=site.add(1))
    gold.update(gold="first", status=Comparison.Status.GOLD)
    experiments.cancel_comparisons(site.experiment, site.add(1))
    return f"/experiments/{site.experiment.name}/"


def pages_of(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Addresses below the experiment's, and what tells that the page is there."""
    yield "comparisons", ".comparisons .comparison"
    yield "comparisons?state=leased", ".empty"
    yield "review?state=decided", ".answers"
    yield f"comparisons/{experiment.comparisons.latest('pk').uuid}", ".facts"
    yield "", "#labelers table"
    yield "settings", "form"
    yield "invites", ".person"
    yield "participants", ".participants"
    yield f"labelers/{Labeler.objects.get(name='mia').pk}", "form"
    yield f"labelers/{Arrival.objects.get().labeler_id}", "form"


def test_researchers_pages_accessible(site: Site, busy: str, labeling: LabelingPage, page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(site.url + busy)
    labeling.sign_in("ada")
    expect(page.locator("#labelers table")).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    for address, there in pages_of(site.experiment):
        page.goto(site.url + busy + address)
        expect(page.locator(there).first).to_be_visible()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        page.evaluate("for (const each of document.querySelectorAll('#said, #settle')) each.hidden = false")
        assert faults(page) == [], address
        assert out_of_reach(page) == [], address


def out_of_reach(page: Page) -> list[str]:
    """List controls that Tab doesn't reach, or that don't show that they have the focus."""
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    for _ in range(page.evaluate(f"document.querySelectorAll('{CONTROLS}').length") + 2):
        page.keyboard.press("Tab")
        page.evaluate(
            """{
                const focused = document.activeElement;
                const { outlineStyle, boxShadow } = getComputedStyle(focused);
                if (outlineStyle !== "none" || boxShadow !== "none") focused.dataset.reached = "";
            }"""
        )
    missed: list[str] = page.evaluate(
        f"""[...document.querySelectorAll('{CONTROLS}')]
            .filter((each) => !("reached" in each.dataset))
            .filter((each) => each.checkVisibility({{ visibilityProperty: true }}))
            .map((each) => each.outerHTML.slice(0, 200))"""
    )
    return missed


def test_review_by_keys(site: Site, page: Page, labeling: LabelingPage) -> None:
    site.add(1)
    site.add(1, kind="best_worst")
    page.goto(f"{site.url}/experiments/hopper/review")
    labeling.sign_in("ada")
    labeling.until_they_play_together(after=0.3)
    page.keyboard.press("s")
    expect(page.locator("#rate")).to_have_text("½×")
    page.keyboard.press("d")  # nothing is chosen yet
    expect(page.locator("#said")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#said")).to_contain_text("No labels yet.")
    page.keyboard.press("d")
    expect(page.locator("#said")).to_contain_text("Second is better")
    page.keyboard.press("j")
    expect(page.locator(".frame video")).to_have_count(4)
    labeling.until_they_play_together(after=0.1)
    for key in "24d":
        page.keyboard.press(key)
    expect(page.locator("#said")).to_contain_text("Settled by ada")
    assert [row.settled for row in Comparison.objects.order_by("pk")] == ["second", "2>4"]
    labeling.until_they_play_together(after=0.1)  # the page has come again
    page.keyboard.press("k")
    expect(page.locator(".pagination")).to_contain_text("1 / 2")


CONTROLS = (
    "a[href], summary, button:enabled, select:enabled, textarea:enabled, "
    "input:enabled:not([type=hidden], [type=radio])"
)
PASSWORD = "a-long-enough-password"


@pytest.fixture
def watching(site: Site, page: Page, labeling: LabelingPage) -> Page:
    """The page of the experiment before its researcher, with one film."""
    site.film(100)
    page.goto(f"{site.url}/experiments/hopper/")
    labeling.sign_in("ada")
    expect(page.locator("#stage")).to_be_visible()
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
    video = page.locator("#stage video").first
    video.evaluate("(video) => { video.id_kept = true; return video.play(); }")
    page.get_by_text("Invite a labeler").first.click()
    page.locator("input[name=labeler]").fill("zo")
    page.evaluate("scrollTo(0, 120)")

    site.film(200)
    TrainingPoint.objects.create(experiment=site.experiment, step=5, tag="predictor/accuracy", value=0.75)
    until(page, "#pace", "75%")

    expect(page.locator("a.film")).to_have_count(2)
    newest = page.locator("#stage video").last
    expect(newest).to_have_attribute("src", "/experiments/hopper/episodes/200")
    expect(page.locator("figure.curve")).to_have_count(2)
    kept: dict[str, Any] = video.evaluate("({ id_kept, paused }) => ({ id_kept, paused })")
    assert kept == {"id_kept": True, "paused": False}
    expect(page.locator("input[name=labeler]")).to_have_value("zo")
    expect(page.locator("input[name=labeler]")).to_be_focused()
    assert page.evaluate("scrollY") == 120
    page.locator("a.film").first.press("Enter")
    expect(newest).to_have_attribute("src", "/experiments/hopper/episodes/100")
    expect(page.locator("#stage figure").last).to_contain_text("Step 100")

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


def test_edits_of_another_form_are_not_lost_without_a_word(
    site: Site, page: Page, labeling: LabelingPage
) -> None:
    page.goto(f"{site.url}/experiments/hopper/settings")
    labeling.sign_in("ada")
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    page.locator("[name=prompt]").fill("Which one is higher?")
    page.get_by_role("button", name="Save").first.click()
    page.wait_for_timeout(100)
    assert asked == ["beforeunload"]
    expect(page.locator("[name=prompt]")).to_have_value("Which one is higher?")
    page.get_by_role("button", name="Change the prompt").click()
    expect(page.locator("ol")).to_contain_text("Which one is higher?")
    assert asked == ["beforeunload"]

"""Pages that are open for longer than the links to their clips last: a lid was closed, somebody had lunch."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core import signing
from playwright.sync_api import Locator, Page, Route, expect
from pytest_django import Settings

from human_feedback_site.feedback.models import Comparison
from tests.e2e.browser.conftest import LabelingPage, Site, Storage

LINK_SECONDS = 3  # long enough to be followed on a busy machine
LONGEST_WAIT_MS = 60_000  # from try to try of a page
PLAYS = "(video) => video.videoWidth > 0 && video.currentTime > 0 && !video.error"
BOTH_STORES = pytest.mark.parametrize("storage", ["folder", "s3"], indirect=True)


@pytest.fixture
def grow_old(storage: Storage, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[Page], None]:
    """Let each link on a page expire: by the site's clock, or by waiting, as an S3 server has its own."""
    settings.MEDIA_LINK_SECONDS = LINK_SECONDS

    def grow_old(page: Page) -> None:
        if storage.url is not None:
            page.wait_for_timeout(1_000 * LINK_SECONDS + 1_500)
            return
        ahead = SimpleNamespace(time=lambda: time.time() + LINK_SECONDS + 2)
        monkeypatch.setattr(signing, "time", ahead)
        page.context.new_cdp_session(page).send("Network.clearBrowserCache")

    return grow_old


def expect_to_play(videos: Locator, count: int) -> None:
    expect(videos).to_have_count(count)
    for at in range(count):
        video = videos.nth(at).element_handle()
        videos.page.wait_for_function(PLAYS, arg=video)


@BOTH_STORES
def test_old_history_plays(
    site: Site, labeling: LabelingPage, page: Page, grow_old: Callable[[Page], None]
) -> None:
    labeling.begin(site, 4)
    for answered in range(1, 5):
        labeling.press("ArrowLeft")
        labeling.expect_saved(answered)
    page.keyboard.press("h")
    cards = page.get_by_role("listitem")
    expect(cards).to_have_count(4)
    grow_old(page)
    for card in (cards.last, cards.first):  # one that was out of sight, and one whose clips were fetched
        card.get_by_role("button", name="Play or pause both clips").click()
        expect_to_play(card.locator("video"), 2)


@pytest.mark.parametrize(
    ("paths", "storage"), [(("", "comparisons"), "folder"), (("comparisons",), "s3")], indirect=["storage"]
)
def test_researchers_play_clips_of_an_old_page(
    site: Site, page: Page, labeling: LabelingPage, paths: tuple[str, ...], grow_old: Callable[[Page], None]
) -> None:
    site.add(12)
    page.goto(f"{site.url}/experiments/hopper/")
    labeling.sign_in("ada")
    for path in paths:
        page.goto(f"{site.url}/experiments/hopper/{path}")
        cards = page.locator("li.comparison")
        expect(cards).to_have_count(12)
        grow_old(page)
        for card in (cards.last, cards.first):
            play = card.get_by_role("button", name="Play or pause both clips")
            play.click()
            expect_to_play(card.locator("video"), 2)
            play.click()
            assert card.locator("video").evaluate_all("(videos) => videos.every(({ paused }) => paused)")


def expect_renewal(video: Locator, start: str = "video.play().catch(() => {})") -> None:
    """Let a video break off, and wait until it plays again by itself."""
    page, address = video.page, video.get_attribute("src")
    page.route(f"**{address}", lambda route: route.abort())
    video.evaluate(f"(video) => {{ video.load(); {start} }}")
    page.wait_for_function("(video) => video.error", arg=video.element_handle())
    page.unroute(f"**{address}")
    page.clock.fast_forward(LONGEST_WAIT_MS)
    expect_to_play(video, 1)
    assert video.get_attribute("src") == address


RESEARCHERS_PAGES = {
    "experiments/hopper/": "#film-100 video",
    "experiments/hopper/comparisons/{uuid}": ".clips video",
    "admin/feedback/comparison/{id}/change/": "video",
}


def test_researchers_pages_resume_a_broken_download(site: Site, page: Page, labeling: LabelingPage) -> None:
    User.objects.update(is_superuser=True)
    site.film(100)
    [uuid] = site.add(1)
    site.set(state="finished")  # no news come
    page.clock.install()
    page.goto(f"{site.url}/accounts/login/?next=/")
    labeling.sign_in("ada")
    page.wait_for_url(f"{site.url}/")
    for path, videos in RESEARCHERS_PAGES.items():
        page.goto(f"{site.url}/{path.format(uuid=uuid, id=Comparison.objects.get(uuid=uuid).pk)}")
        expect_renewal(page.locator(videos).first)


def test_video_started_before_scripts_resumes(site: Site, page: Page, labeling: LabelingPage) -> None:
    [uuid] = site.add(1)
    page.clock.install()
    page.goto(f"{site.url}/accounts/login/?next=/experiments/hopper/")
    labeling.sign_in("ada")
    page.wait_for_url("**/experiments/hopper/")
    scripts: list[Route] = []

    def hold(route: Route) -> None:
        scripts.append(route)

    page.route("**/js/media*.js", hold)
    page.goto(f"{site.url}/experiments/hopper/comparisons/{uuid}", wait_until="commit")
    video = page.locator(".clips video").first
    video.evaluate("(video) => video.play()")
    expect_to_play(video, 1)
    for script in scripts:
        script.continue_()
    page.wait_for_load_state("load")
    expect_renewal(video, start="")


def test_labelers_videos_resume(
    site: Site, labeling: LabelingPage, page: Page, grow_old: Callable[[Page], None]
) -> None:
    page.clock.install()
    site.film(100)
    labeling.begin(site, 1)
    page.get_by_role("button", name="Episode").click()
    grow_old(page)
    expect_renewal(page.locator("#episode-video"))
    labeling.press("ArrowLeft")
    labeling.wait_for("empty")
    expect_renewal(page.locator("[data-panel=empty] .strip video"))
    page.keyboard.press("h")
    expect(page.get_by_role("button", name="Play or pause both clips")).to_be_visible()  # scripts are there
    expect_renewal(page.locator("li video").first)


def test_practice_resumes(site: Site, labeling: LabelingPage, grow_old: Callable[[Page], None]) -> None:
    for _ in range(2):
        site.explain("first", "It hops.", practice=True)
    site.add(1)
    labeling.open(site.invite(), "practice")
    labeling.until_they_play_together(after=0.0)
    grow_old(labeling.page)
    labeling.press("ArrowLeft")
    labeling.wait_for("feedback")
    labeling.page.keyboard.press("Enter")
    labeling.wait_for("practice")
    labeling.until_they_play_together(after=0.0)
    assert all(video["videoWidth"] for video in labeling.videos())

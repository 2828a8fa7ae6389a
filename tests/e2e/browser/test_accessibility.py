"""Pages for everybody, and pages that are open for longer than the links to their clips last."""

import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core import signing
from playwright.sync_api import Locator, Page, Route, expect
from pytest_django import Settings

from human_feedback_site.feedback.models import ApiToken, Comparison
from human_feedback_site.feedback.services.accounts import owner_url
from tests.e2e.browser.conftest import PASSWORD, LabelingPage, Site, Storage, faults

NAME = "(({ activeElement: it }) => it.ariaLabel ?? it.innerText.replace(/\\s+/g, ' ').trim())(document)"


def tour(site: Site, labeling: LabelingPage) -> Iterator[str]:
    """Each state of the labeling page, and the pages that it leads to."""
    page = labeling.page
    page.goto(site.invite())
    expect(page.locator("#examples .better video")).to_have_count(1)
    yield "examples"
    page.keyboard.press("Escape")
    labeling.wait_for("practice")
    yield "practice"
    labeling.press("ArrowUp")
    labeling.wait_for("feedback")
    yield "feedback"
    page.keyboard.press("Enter")
    labeling.wait_for("judging")
    expect(labeling.toast).not_to_have_class(re.compile("visible"))  # the line that goes by is gone
    yield "judging"
    page.keyboard.press("e")
    expect(page.locator("#episode")).to_be_visible()
    yield "episode"
    page.keyboard.press("e")
    page.keyboard.press("?")
    yield "help"
    page.keyboard.press("Escape")
    page.route("**/api/v1/labels", lambda route: route.abort())
    labeling.press("ArrowLeft")
    expect(page.locator("#away")).to_be_visible()
    labeling.unsaved.click()
    yield "unsaved"
    page.keyboard.press("Escape")
    page.unroute("**/api/v1/labels")
    labeling.come_back()
    labeling.expect_saved(1)
    labeling.wait_for("empty")
    yield "empty"
    page.keyboard.press("h")
    expect(page.get_by_role("listitem")).to_have_count(1)
    yield "history"
    page.goto(f"{site.url}/experiments/hopper/done")
    yield "done"


def test_nothing_serious_is_wrong_and_nothing_is_cut_off(site: Site, labeling: LabelingPage) -> None:
    site.explain("first", "It goes up.")
    site.explain("second", "It goes up, too.", practice=True)
    site.film(20_480)
    site.add(1)
    labeling.page.emulate_media(reduced_motion="reduce")
    for state in tour(site, labeling):
        assert faults(labeling.page) == [], state


def test_the_bar_of_a_phone_has_room_for_all_that_it_can_say(site: Site, phone: LabelingPage) -> None:
    site.add(1)
    page = phone.page
    token = ApiToken.objects.create(user=site.owner, digest="0" * 64)
    link = site.invite()
    page.goto(owner_url(site.experiment, "mia", token, site.url))
    phone.open(link)
    expect(page.get_by_role("link", name="Experiment", exact=True)).to_be_visible()
    page.evaluate("for (const number of document.querySelectorAll('.bar b')) number.textContent = '1234'")
    for shown in ("[data-waiting]", "#unsaved"):
        page.locator(f".bar {shown}").evaluate("(it) => { it.hidden = false; }")
        for width, height in ((320, 568), (360, 740), (640, 360), (844, 390)):
            page.set_viewport_size({"width": width, "height": height})
            cut_off = page.locator(".bar").evaluate("(bar) => bar.scrollWidth - bar.clientWidth")
            assert cut_off == 0, (shown, width)
    expect(page.locator("#unsaved")).to_be_visible()
    expect(page.locator(".bar [data-waiting]")).to_be_hidden()


def test_tab_reaches_every_control_and_status_is_announced(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    labeling.begin(site, 1)
    reached = []
    for _ in range(15):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(NAME))
    assert reached[0] == "Skip to content"
    controls = ["Pause P", "Replay Space", "Position in both clips", "1× Speed S", "Full screen F"]
    answers = ["← Left", "↑ Equal", "↓ Can’t tell", "Right →"]
    assert reached[3:] == ["Sign out", *controls, *answers, "Z Undo", "H History"]
    page.get_by_role("button", name="Equal").focus()
    page.wait_for_timeout(450)
    page.keyboard.press("Space")  # presses the button that has the focus
    labeling.expect_saved(1)
    heard = page.get_by_role("status")
    expect(heard.filter(has_text="Equal. Next pair.")).to_have_count(1)
    expect(heard.filter(has_text="No pairs to judge right now")).to_have_count(1)
    page.keyboard.press("z")
    expect(heard.filter(has_text="The answer was undone. Its pair is back.")).to_have_count(1)


def test_a_finger_answers_by_a_tap_on_a_clip_or_a_button(site: Site, phone: LabelingPage) -> None:
    site.add(2)
    labeling = phone.open(site.invite())
    for answered, target in enumerate((".clip >> nth=1", ".answer[data-choice=left]"), 1):
        box = labeling.page.locator(target).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 44
        labeling.watch()
        labeling.page.tap(target)
        labeling.expect_saved(answered)
    assert [label.choice for label in site.labels()] == ["right", "left"]


BRIGHTNESS = """(element) => {
    const [red, green, blue] = getComputedStyle(element).backgroundColor.match(/[0-9.]+/g);
    return (Number(red) + Number(green) + Number(blue)) / (3 * 255);
}"""


def test_the_page_of_the_api_is_as_dark_as_the_system(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/api/docs/")
    html = page.locator("html")
    expect(html).not_to_have_class("dark-mode")
    page.emulate_media(color_scheme="dark")
    expect(html).to_have_class("dark-mode")
    assert html.evaluate(BRIGHTNESS) < 0.2
    page.reload()
    expect(html).to_have_class("dark-mode")
    expect(
        page.get_by_text("Record the labeler's answer to a lease, even if the lease has expired")
    ).to_be_visible()
    page.get_by_role("link", name="RL-Teacher", exact=False).first.click()
    page.wait_for_url(f"{site.url}/accounts/login/?next=/")


def test_admin_search_and_token_on_a_phone(site: Site, page: Page, labeling: LabelingPage) -> None:
    User.objects.create_superuser("root", password=PASSWORD)
    page.goto(f"{site.url}/accounts/login/?next=/admin/feedback/experiment/")
    labeling.sign_in("root")
    page.wait_for_url("**/admin/feedback/experiment/")  # and for the scripts on it
    for wanted in ("Leases", "Sequence counters"):
        page.goto(f"{site.url}/admin/feedback/experiment/")
        link = page.locator("#nav-sidebar").get_by_role("link", name=wanted)
        expect(link).to_be_hidden()
        find = page.locator("#nav-filter")
        find.press_sequentially(wanted[:6])
        expect(link).to_be_visible()
        find.fill("")
        find.press("Escape")
        expect(link).to_be_hidden()
        page.locator("#nav-sidebar summary").click()
        link.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Select")
        expect(link).to_be_visible()  # the fold stays open where the page is of something in it
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{site.url}/admin/feedback/apitoken/add/")
    page.locator("#id_user").select_option(label="root")
    page.locator("[name=_save]").click()
    token = page.locator("#token")
    expect(token).to_be_visible()
    assert token.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0


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
        labeling.answer("ArrowLeft", answered)
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
    "experiments/hopper/": "#stage video",
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

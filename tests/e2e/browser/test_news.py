"""A new video of the agent is shown between pairs, and is never in the way."""

from collections.abc import Callable

from playwright.sync_api import Page, ViewportSize, expect

from tests.e2e.browser.conftest import LabelingPage, Site

OVERLAPS = """(selectors) => {
    const news = document.querySelector("#news").getBoundingClientRect();
    return selectors.filter((selector) => [...document.querySelectorAll(selector)].some((each) => {
        const { left, right, top, bottom } = each.getBoundingClientRect();
        return left < news.right && news.left < right && top < news.bottom && news.top < bottom;
    }));
}"""
KNOWS_THE_FIRST = (
    "() => Object.entries(localStorage).some(([key, it]) => key.includes('.news.') && it === '0')"
)
PLACES = """JSON.stringify(
    [...document.querySelectorAll(".frame, .answer")].map((each) => each.getBoundingClientRect())
)"""


def hear(labeling: LabelingPage) -> None:
    """Let the page notice a new video now."""
    with labeling.page.expect_response("**/progress") as response:
        labeling.come_back()
    response.value.finished()


def begin(site: Site, labeling: LabelingPage, answers: int = 1) -> None:
    """Open the page while there is one video, give answers, and let a second video arrive."""
    site.film(0)
    site.add(answers + 3)
    labeling.open(site.invite())
    labeling.page.wait_for_function(KNOWS_THE_FIRST)
    for answered in range(1, answers + 1):
        labeling.press("ArrowLeft")
        labeling.expect_saved(answered)
    site.film(20_000)
    hear(labeling)


def test_a_new_video_is_shown_once_after_the_next_answer(site: Site, labeling: LabelingPage) -> None:
    begin(site, labeling, answers=2)
    page = labeling.page
    news, video = page.locator("#news"), page.locator("#news-video")
    expect(news).to_be_hidden()  # in the middle of a pair
    before = page.evaluate(PLACES)
    labeling.press("ArrowLeft")
    expect(page.locator("#news-title")).to_have_text("What 2 answers have taught the agent")
    expect(page.locator("#news-said")).to_have_text("What 2 answers have taught the agent")
    page.wait_for_function("() => document.querySelector('#news-video').currentTime > 0")
    assert video.evaluate("(it) => [it.muted, it.loop]") == [True, True]
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    assert page.evaluate(PLACES) == before
    page.keyboard.press("Escape")
    expect(news).to_be_hidden()
    expect(page.locator("#news-said")).to_be_empty()
    page.reload()
    labeling.wait_for("judging")
    hear(labeling)
    labeling.press("ArrowLeft")
    labeling.expect_saved(4)
    expect(news).to_be_hidden()


def test_the_card_covers_nothing_and_before_and_after_are_compared(
    site: Site, labeling: LabelingPage, faults: Callable[[Page], list[str]]
) -> None:
    page = labeling.page
    begin(site, labeling)
    labeling.press("ArrowLeft")
    expect(page.locator("#news")).to_be_visible()
    page.locator("#news-title").evaluate(
        "(it) => { it.textContent = it.textContent.replace('1', '123,456'); }"
    )
    wide = [(1280, 600), (1280, 800), (1440, 900), (1920, 1080)]
    for width, height in [*wide, (1024, 768), (360, 740), (320, 568), (740, 360), (568, 320)]:
        page.set_viewport_size(ViewportSize(width=width, height=height))
        expect(page.locator("#news-video")).to_be_visible(visible=(width, height) in wide)
        expect(page.locator("#news .watch")).to_be_visible(visible=(width, height) not in wide)
        covered = [".stage", ".transport", ".answer", ".tools .link", "#prompt"]
        assert page.evaluate(OVERLAPS, covered) == [], (width, height)
    assert faults(page) == []
    for path in ("experiments/hopper/done", ""):
        page.goto(f"{site.url}/{path}")
        expect(page.locator("figcaption")).to_have_text(["Before", "After 1 answer, 1 of them yours"])
        page.get_by_role("button", name="Play or pause both clips").click()
        page.wait_for_function(
            "() => [...document.querySelectorAll('.before-after video')].every((it) => it.currentTime > 0)"
        )
    assert faults(page) == []


def test_narrow_page_offers_the_video_in_one_line(site: Site, phone: LabelingPage) -> None:
    begin(site, phone)
    phone.press("ArrowLeft")
    page = phone.page
    expect(page.locator("#news")).to_contain_text("What 1 answer has taught the agent")
    assert page.locator("#news-video").get_attribute("src") is None  # is not downloaded unseen
    page.get_by_role("button", name="Watch").tap()
    expect(page.locator("#news")).to_be_hidden()
    expect(page.locator("#episode-caption")).to_have_text("Step 20,000 · 1 answer")
    site.film(30_000)
    site.set(show_episodes=False)
    hear(phone)
    for hidden in (page.locator("#episode"), page.get_by_role("button", name="Episode")):
        expect(hidden).to_be_hidden()
    phone.press("ArrowLeft")
    phone.expect_saved(3)
    expect(page.locator("#news")).to_be_hidden()


def test_card_opens_the_panel_and_respects_reduced_motion(site: Site, labeling: LabelingPage) -> None:
    page = labeling.page
    page.emulate_media(reduced_motion="reduce")
    begin(site, labeling)
    labeling.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('#news-video').readyState >= 2")
    assert page.locator("#news-video").evaluate("(it) => it.paused")
    page.locator("#news-video").click()
    expect(page.locator("#episode")).to_be_visible()
    expect(page.locator("#news")).to_be_hidden()
    site.film(30_000)  # who is watching sees it in the panel
    hear(labeling)
    expect(page.locator("#episode-caption")).to_contain_text("Step 30,000")
    labeling.press("ArrowLeft")
    labeling.expect_saved(3)
    expect(page.locator("#news")).to_be_hidden()

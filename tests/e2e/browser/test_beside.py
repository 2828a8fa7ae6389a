"""Test what the labeling page shows beside and between the pairs: progress, lessons, films and news."""

from itertools import combinations, product

from django.core.cache import cache
from playwright.sync_api import Page, ViewportSize, expect

from human_feedback_site.feedback.models import Participation
from tests.e2e.browser.conftest import LabelingPage, Site, faults
from tests.e2e.browser.test_playback import HIDDEN
from tests.site.conftest import new_invite

AHEAD = 8


def test_progress_bar_counts_own_answers(site: Site, labeling: LabelingPage) -> None:
    site.set(pretrain_labels=3)
    site.add(4, phase="pretraining")
    labeling.open(site.invite())
    text, bar = labeling.page.locator("#progress-text"), labeling.page.locator("#progress progress")
    expect(text).to_have_text("0 of 3 answers before training starts")
    for key, expected in [("ArrowLeft", 1), ("ArrowDown", 1), ("ArrowUp", 2), ("ArrowRight", 3)]:
        labeling.press(key)
        expect(text).to_have_text(f"{expected} of 3 answers before training starts")
        expect(bar).to_have_js_property("value", expected)
    labeling.wait_for("held")
    labeling.page.keyboard.press("z")
    expect(text).to_have_text("2 of 3 answers before training starts, about 1 minute")
    labeling.answer("ArrowLeft", 4)
    site.add(1)
    cache.clear()  # in which the count is kept for some seconds
    labeling.page.reload()
    expect(text).to_contain_text("4 of 100 answers, about ")
    _ask_for(12, site)
    labeling.come_back()
    expect(text).to_have_text("You: 4 of 12 answers, about 1 minute")
    labeling.press("ArrowLeft")
    expect(text).to_have_text("You: 5 of 12 answers, about 1 minute")
    expect(labeling.page.locator("#progress-of-all")).to_have_text("Everyone: 5 of 100 answers")
    assert bar.evaluate("(bar) => [bar.value, bar.max]") == [5, 12]


def _ask_for(answers: int, site: Site) -> None:
    """Ask the only labeler for a number of answers, which then include all given so far."""
    Participation.objects.update(invite=new_invite(site.experiment, answers_wanted=answers))


def test_empty_queue_shows_the_policy_over_time(site: Site, labeling: LabelingPage) -> None:
    steps = [0, 40_000, 90_000, 120_000, 200_000, 300_000, 410_000, 500_000, 620_000, 700_000]
    for step in steps:
        site.film(step)
    labeling.open(site.invite(), state="empty")
    shown = labeling.page.locator("[data-panel=empty] .strip li")
    expect(shown.locator("p")).to_have_text(
        [f"Step {step:,} · 0 answers" for step in (0, 90_000, 200_000, 300_000, 500_000, 700_000)]
    )
    labeling.page.wait_for_function(
        """() => 6 === [...document.querySelectorAll(".strip video")]
            .filter((video) => video.currentTime > 0).length"""
    )
    site.add(1)
    labeling.come_back()
    labeling.wait_for("judging")
    expect(labeling.page.locator(".strip video")).to_have_count(0)  # nothing plays unseen


NOTIFICATION = """
    window.notices = [];
    window.Notification = class extends EventTarget {
        static permission = "default";
        static async requestPermission() { return Notification.permission = "granted"; }
        constructor(title, { body }) { super(); notices.push(`${title}: ${body}`); }
        close() { notices.push("closed"); }
    };
"""


def test_last_pair_stays_during_a_short_wait_and_a_long_one_may_notify(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    page.add_init_script(NOTIFICATION)
    page.clock.install()
    labeling.begin(site, 2)
    expect(page).to_have_title("(2) hopper · RL-Teacher")
    page.evaluate(HIDDEN)
    labeling.press("ArrowLeft")
    expect(page).to_have_title("(1) hopper · RL-Teacher")
    labeling.answer("ArrowRight", 2)
    labeling.wait_for("held")
    expect(page).to_have_title("hopper · RL-Teacher")
    assert [video["videoWidth"] for video in labeling.videos()] == [128, 128]
    expect(page.locator(".panel:visible")).to_have_count(0)
    page.keyboard.press("ArrowLeft")
    site.add(1)
    page.clock.run_for(2_600)
    labeling.answer("ArrowUp", 3)
    labeling.wait_for("held")
    page.clock.run_for(3_000)
    labeling.wait_for("empty")
    expect(page.locator(".stage video:visible")).to_have_count(0)
    page.get_by_role("button", name="Notify me", pressed=False).click()
    expect(page.get_by_role("button", name="Notify me", pressed=True)).to_be_visible()
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    site.add(3)
    page.clock.run_for(31_000)
    expect(page).to_have_title("(3) hopper · RL-Teacher")
    page.clock.run_for(31_000)
    assert page.evaluate("notices") == ["New clips are waiting for you: Which one hops higher?"]
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    labeling.wait_for("judging")
    assert page.evaluate("notices.at(-1)") == "closed"


def test_nine_pairs_are_loaded_ahead_for_offline_use(site: Site, labeling: LabelingPage) -> None:
    site.add(12)
    fetched: list[str] = []
    labeling.page.on("requestfinished", lambda request: fetched.append(request.url))
    labeling.open(site.invite())
    while sum("/media/" in url for url in fetched) < 2 * (1 + AHEAD):
        labeling.page.wait_for_timeout(50)
    labeling.page.context.set_offline(offline=True)
    for unsaved in range(1, AHEAD + 1):
        labeling.press("ArrowRight")
        expect(labeling.unsaved).to_contain_text(str(unsaved))
        labeling.wait_for("judging")
        assert [video["videoWidth"] for video in labeling.videos()] == [128, 128]
    away = labeling.page.locator("#away")
    expect(away).to_contain_text("You can keep answering: your answers are kept")
    labeling.press("ArrowRight")
    labeling.wait_for("offline")
    assert site.labels() == []
    expect(away.locator("span:visible")).to_have_text(
        ["No connection.", "Your answers are kept in this browser and sent when the site is back."]
    )
    labeling.page.context.set_offline(offline=False)
    labeling.expect_saved(1 + AHEAD)
    labeling.wait_for("judging")


def test_abandoned_lease_is_not_renewed(site: Site, labeling: LabelingPage, page: Page) -> None:
    site.add(1)
    page.clock.install()
    labeling.open(site.invite())
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/leases" in request.url else None)
    page.clock.run_for(30_000)
    page.wait_for_timeout(500)
    assert asked  # the lease is renewed
    page.clock.run_for(120_000)
    page.wait_for_timeout(500)
    asked.clear()
    page.clock.run_for(60_000)
    page.wait_for_timeout(500)
    assert asked == []
    labeling.wait_for("judging")
    site.set(state="paused")
    page.mouse.move(5, 5)
    labeling.wait_for("paused")


# Phones, upright and on their side, and pages enlarged to 150, 200 and 300 %.
WINDOWS = [
    (720, 450),
    (640, 360),
    (844, 390),
    (390, 844),
    (360, 740),
    (320, 568),
    (568, 320),
    (853, 480),
    (480, 300),
]
BOXES = """() => {
    const box = (each) => {
        const {left, top, right, bottom} = each.getBoundingClientRect();
        return [left, top, right, bottom];
    };
    const all = (selector) => [...document.querySelectorAll(selector)];
    const seen = (selector) => all(selector).filter((each) => each.checkVisibility());
    return {
        controls: seen(".answer, .transport button, #scrub, .tools .link, .bar :is(a, button)").map(box),
        answers: seen(".answer").map(box),
        clips: seen(".frame").map(box),
        toast: seen("#toast").map(box),
        texts: seen("#prompt, #progress-text, #progress-of-all").map(box),
    };
}"""
Box = tuple[float, float, float, float]


def _overlap(one: Box, other: Box) -> bool:
    across, down = (min(one[side + 2], other[side + 2]) - max(one[side], other[side]) for side in (0, 1))
    return across > 0.5 and down > 0.5


ANSWERS = {"pair": 4, "graded": 6, "rating": 6, "best_worst": 5}


def expect_to_fit(page: Page, kind: str) -> None:
    """Expect every control, clip and text in view in each of the windows, none over another."""
    for width, height in WINDOWS:
        page.set_viewport_size(ViewportSize(width=width, height=height))
        boxes = page.evaluate(BOXES)
        window = f"{kind} in {width} x {height}"
        inside = [*boxes["controls"], *boxes["clips"], *boxes["texts"]]
        for left, top, right, bottom in inside:
            assert 0 <= left < right <= width, window
            if (width, height) != (480, 300):  # lower than that, it scrolls
                assert 0 <= top < bottom <= height, window
        pairs = [*combinations(inside, 2), *product(boxes["toast"], boxes["controls"])]
        assert [each for each in pairs if _overlap(*each)] == [], window
        assert len(boxes["controls"]) == ANSWERS[kind] + 5 + 5 + 3, window
        assert all(bottom - top >= 40 for _, top, _, bottom in boxes["answers"]), window
        assert all(right - left >= 40 for left, _, right, _ in boxes["answers"]), window
        least = min(0.41 * min(width, height), 215) / (2 if kind == "best_worst" else 1)
        assert all(right - left > least for left, _, right, _ in boxes["clips"]), window
        if kind == "pair":
            (_, _, _, bottom), *_, last = boxes["answers"]
            assert last[1] < bottom, f"left and right are not side by side in {window}"


def test_small_windows_show_every_control_without_overlap(site: Site, labeling: LabelingPage) -> None:
    site.explain("first", "It goes up.")
    site.film(20_480)
    site.add(1)
    page = labeling.page
    page.goto(site.invite())
    expect(page.locator("#examples")).to_be_visible()
    page.keyboard.press("Escape")
    labeling.wait_for("judging")
    _ask_for(12, site)
    labeling.come_back()
    expect(page.locator("#progress-of-all")).to_be_visible()
    expect(page.locator(".tools [data-action=episode]")).to_be_visible()
    page.evaluate("document.querySelector('#toast').textContent = 'There is no answer to undo.'")
    for answered, kind in enumerate(ANSWERS, 1):
        expect(page.locator("main")).to_have_attribute("data-kind", kind)
        expect_to_fit(page, kind)
        if kind != "best_worst":
            site.add(1, kind=[*ANSWERS][answered])
        labeling.watch()
        page.locator(".answer:visible").first.click()
        if kind == "best_worst":
            page.locator(".answer:visible").nth(1).click()
        labeling.expect_saved(answered)
        if kind != "best_worst":
            labeling.wait_for("judging")


def test_examples_and_practice_come_once_before_the_first_pair(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    site.explain("first", "It goes up.")
    site.explain("first", "It goes up, too.", practice=True)
    site.explain("equal", "Neither <b>moves</b>.", practice=True)
    site.add(2)
    page.goto(site.invite())
    examples = page.locator("#examples")
    expect(examples).to_be_visible()
    expect(examples.locator(".better video")).to_have_count(1)
    expect(examples).to_contain_text("It goes up.")
    page.keyboard.press("Escape")

    labeling.wait_for("practice")
    note, feedback = page.locator("#practice-note"), page.locator("#feedback")
    expect(note).to_contain_text("Practice 1 / 2")
    labeling.press("Arrow" + labeling.side_of("red").capitalize())
    expect(feedback).to_contain_text("Yes, we agree.")
    expect(feedback).to_contain_text("It goes up, too.")
    expect(page.locator(".stage .frame.better")).to_have_count(1)
    page.keyboard.press("Enter")

    expect(note).to_contain_text("Practice 2 / 2")
    labeling.wait_for("practice")
    labeling.press("ArrowLeft")
    expect(feedback).to_contain_text("Our answer: Equal")
    expect(feedback).to_contain_text("Neither <b>moves</b>.")
    feedback.get_by_role("button", name="Next").click()

    labeling.wait_for("judging")
    expect(note).to_be_hidden()
    expect(page.locator("#practice-at")).to_have_text("")
    assert site.labels() == []
    labeling.open(site.label_url)
    labeling.answer("ArrowUp", 1)
    assert [label.choice for label in site.labels()] == ["equal"]
    page.evaluate("localStorage.clear()")
    labeling.open(site.label_url)


def test_a_practice_whose_examples_cannot_be_read_is_left_out(site: Site, labeling: LabelingPage) -> None:
    site.explain("first", "It goes up.", practice=True)
    site.add(1)
    labeling.page.route("**/examples", lambda route: route.abort())
    labeling.open(site.invite())


def test_the_latest_episode_is_watched_beside_the_pairs(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    labeling.begin(site, 1)
    button, film = page.get_by_role("button", name="Episode"), page.locator("#episode")
    expect(button).to_be_hidden()
    site.film(20_480)
    labeling.come_back()
    expect(button).to_be_visible()
    page.keyboard.press("e")
    expect(film).to_contain_text("20,480")
    expect(button).to_have_attribute("aria-pressed", "true")
    page.wait_for_function(
        "() => { const v = document.getElementById('episode-video'); return !v.paused && v.videoWidth > 0; }"
    )
    assert len(labeling.videos()) == 2
    site.film(40_960)
    labeling.come_back()
    expect(film).to_contain_text("40,960")
    film.get_by_role("button", name="Close").click()
    expect(film).to_be_hidden()
    labeling.answer("ArrowLeft", 1)


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
    labeling.begin(site, answers + 3)
    labeling.page.wait_for_function(KNOWS_THE_FIRST)
    for answered in range(1, answers + 1):
        labeling.answer("ArrowLeft", answered)
    site.film(20_000)
    hear(labeling)


def test_a_new_video_is_shown_once_after_the_next_answer(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    begin(site, labeling, answers=2)
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
    labeling.answer("ArrowLeft", 4)
    expect(news).to_be_hidden()


BOTH = "[...document.querySelectorAll('.before-after video')]"


def test_the_card_covers_nothing_and_before_and_after_are_compared(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
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
    page.set_viewport_size(ViewportSize(width=1280, height=800))
    for path in ("experiments/hopper/done", ""):
        page.emulate_media(reduced_motion="no-preference")
        page.goto(f"{site.url}/{path}")
        expect(page.locator("figcaption")).to_have_text(["Before", "After 1 answer, 1 of them yours"])
        page.wait_for_function(f"() => {BOTH}.every((it) => !it.paused && it.currentTime > 0)")
    page.emulate_media(reduced_motion="reduce")
    page.reload()
    page.wait_for_function(f"() => {BOTH}.every((it) => it.paused && it.currentTime === it.duration / 2)")
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


def test_card_opens_the_panel_and_respects_reduced_motion(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
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
    labeling.answer("ArrowLeft", 3)
    expect(page.locator("#news")).to_be_hidden()

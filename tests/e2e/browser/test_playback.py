"""The clips of the labeling page, played together, on a slow connection, or out of reach."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from tests.e2e.browser.conftest import LabelingPage, Site

WATCH = """
window.starts = [];
let frame = 0;
const count = () => { frame += 1; requestAnimationFrame(count); };
requestAnimationFrame(count);
const play = HTMLMediaElement.prototype.play;
HTMLMediaElement.prototype.play = function () {
  window.starts.push({ frame, time: this.currentTime, seeking: this.seeking, ready: this.readyState,
                       shown: this.isConnected });
  return play.call(this);
};
"""
APART = """async () => {
  const videos = [...document.querySelectorAll(".stage .frame video")];
  const apart = [];
  for (let i = 0; i < 41; i += 1) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
    apart.push(Math.abs(videos[0].currentTime - videos[1].currentTime));
  }
  return apart.sort((a, b) => a - b)[20];
}"""
ACTS = {"pause": ("p", "^(Pause|Play)$"), "slow": ("s", "Speed"), "replay": (" ", "Replay")}


def starts(page: Page) -> list[dict[str, Any]]:
    """Wait for a start of both clips; return every one since the last call."""
    page.wait_for_function("() => window.starts.length >= 2")
    found: list[dict[str, Any]] = page.evaluate("window.starts.splice(0)")
    return found


def test_both_clips_start_and_start_again_in_the_same_frame(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    site.add(2)
    page.add_init_script(WATCH)
    labeling.open(site.invite())
    shown = starts(page)
    assert all(video["videoWidth"] > 0 and video["muted"] for video in labeling.videos())
    assert page.evaluate(APART) < 0.06
    page.keyboard.press(" ")
    again = starts(page)
    looped = starts(page)  # the clip is a second long
    labeling.answer("ArrowLeft", 1)
    following = starts(page)
    for both in (shown[:2], again[:2], looped[:2], following[-2:]):
        assert len(both) == 2
        assert both[0]["frame"] == both[1]["frame"]
        for one in both:
            assert (one["time"], one["seeking"], one["shown"]) == (0, False, True)
            assert one["ready"] >= 2


def test_pause_slow_motion_and_replay(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 3)

    def rates() -> list[float]:
        found: list[float] = page.evaluate(
            "[...document.querySelectorAll('video')].map((v) => v.playbackRate)"
        )
        return found[:2]

    def by_key(what: str) -> None:
        page.keyboard.press(ACTS[what][0])

    def by_button(what: str) -> None:
        page.get_by_role("button", name=re.compile(ACTS[what][1])).click()

    pause = page.locator(".transport [data-action=pause]")
    for answered, act in enumerate((by_key, by_button), 1):
        labeling.until_they_play_together(0.05, 0.5)
        act("pause")
        expect(pause).to_have_accessible_name("Play")
        expect(pause).to_have_attribute("title", "Play")
        still = labeling.videos()
        assert all(video["paused"] for video in still)
        assert still[0]["currentTime"] == still[1]["currentTime"] > 0
        act("pause")
        labeling.until_they_play_together(0)
        act("slow")
        act("slow")
        assert rates() == [0.25, 0.25]
        act("pause")
        act("replay")
        expect(pause).to_have_accessible_name("Pause")
        labeling.answer("ArrowLeft", answered)
        assert rates() == [0.25, 0.25]
        act("slow")
        assert rates() == [1, 1]


def test_seeking_and_full_screen(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 1)
    slider = page.get_by_role("slider", name="Position in both clips")
    slider.fill("500")
    slider.blur()
    at = 0.5
    assert [video["currentTime"] for video in labeling.videos()] == pytest.approx([at, at], abs=0.03)
    for _ in range(3):
        page.keyboard.press(".")
    page.keyboard.press(",")
    moments = [video["currentTime"] for video in labeling.videos()]
    assert moments == pytest.approx([at + 0.1, at + 0.1], abs=0.01)  # two pictures of twenty a second
    slider.focus()
    page.keyboard.press("ArrowRight")  # moves the slider and is no answer
    assert site.labels() == []
    labeling.wait_for("judging")
    slider.blur()
    is_full = "document.fullscreenElement !== null"
    page.keyboard.press("f")
    expect(page.locator(".bar")).to_be_hidden()
    assert page.evaluate(is_full)
    page.get_by_role("button", name="Full screen").click()
    expect(page.locator(".bar")).to_be_visible()
    assert not page.evaluate(is_full)


def test_an_answer_tells_how_long_its_clips_were_in_sight(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    site.add(2)
    page.add_init_script(
        "Object.defineProperty(document, 'hidden', { get: () => window.away === true, configurable: true })"
    )
    page.clock.install()
    labeling.open(site.invite())
    labeling.until_they_play_together(0)
    page.clock.run_for(500)
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(1_500)
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(300)
    page.keyboard.press("ArrowLeft")
    labeling.expect_saved(1)
    [label] = site.labels()
    assert label.shown_ms is not None
    assert label.response_ms is not None
    assert 700 <= label.shown_ms <= label.response_ms - 1_400


SIZE, CUT = 60_000, 5_000
BYTES_PER_SECOND = 50_000
BREAKS = f"""
    const whole = window.fetch;
    let breaks = 2;
    window.fetch = async (url, options) => {{
      const reply = await whole(url, options);
      if (!/media.|[.]mp4/.test(url) || !breaks) return reply;
      breaks -= 1;
      const value = new Uint8Array(await reply.arrayBuffer());
      const pull = (controller) => controller.error(new TypeError("network error"));
      const start = (controller) => controller.enqueue(value.slice(0, {CUT}));
      const broken = new ReadableStream({{ start, pull }}, {{ highWaterMark: 0 }});
      return new Response(broken, {{ status: reply.status, headers: reply.headers }});
    }};
"""


@pytest.fixture
def heavy(site: Site, tmp_path: Path) -> Site:
    """The site with clips of 60 kB: a box that players skip fills them up."""
    clips = []
    for clip in site.clips:
        short = clip.read_bytes()
        rest = SIZE - len(short)
        clips.append(tmp_path / clip.name)
        clips[-1].write_bytes(short + rest.to_bytes(4, "big") + b"free" + bytes(rest - 8))
    site.clips = (clips[0], clips[1])
    return site


@pytest.mark.parametrize("storage", ["folder", "s3"], indirect=True)
def test_a_download_that_broke_off_goes_on(heavy: Site, labeling: LabelingPage) -> None:
    heavy.add(2)
    page, asked = labeling.page, list[Request]()
    page.on("request", lambda request: asked.append(request) if is_clip(request) else None)
    page.add_init_script(BREAKS)
    labeling.open(heavy.invite())
    parts = {request.url: request.headers["range"] for request in asked if "range" in request.headers}
    assert parts == {request.url: f"bytes={CUT}-" for request in asked[:2]}
    labeling.answer("ArrowLeft", 1)


def test_the_page_says_how_long_the_next_pair_takes(heavy: Site, labeling: LabelingPage) -> None:
    heavy.add(3)
    page, asked = labeling.page, set[str]()
    labeling.open(heavy.invite())
    page.goto("about:blank")
    network = page.context.new_cdp_session(page)
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": BYTES_PER_SECOND})
    page.on("request", lambda request: asked.add(request.url) if is_clip(request) else None)
    page.goto(heavy.label_url)
    expect(page.locator("#rest")).to_have_text(re.compile(r"Slow connection: about \d+ s"))
    assert len(asked) == 2  # the first pair alone
    network.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": -1})
    labeling.wait_for("judging")


def is_clip(request: Request) -> bool:
    return "/media/" in request.url or ".mp4" in request.url


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
        labeling.answer("ArrowLeft", 1)
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

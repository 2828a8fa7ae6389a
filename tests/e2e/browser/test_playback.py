"""The clips of the labeling page: they start in one frame, and are paused, slowed and searched together."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

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


def test_both_clips_start_and_start_again_in_the_same_frame(site: Site, labeling: LabelingPage) -> None:
    site.add(2)
    page = labeling.page
    page.add_init_script(WATCH)
    labeling.open(site.invite())
    shown = starts(page)
    assert all(video["videoWidth"] > 0 and video["muted"] for video in labeling.videos())
    assert page.evaluate(APART) < 0.06
    page.keyboard.press(" ")
    again = starts(page)
    looped = starts(page)  # the clip is a second long
    labeling.press("ArrowLeft")
    labeling.expect_saved(1)
    following = starts(page)
    for both in (shown[:2], again[:2], looped[:2], following[-2:]):
        assert len(both) == 2
        assert both[0]["frame"] == both[1]["frame"]
        for one in both:
            assert (one["time"], one["seeking"], one["shown"]) == (0, False, True)
            assert one["ready"] >= 2


def test_pause_slow_motion_and_replay(site: Site, labeling: LabelingPage) -> None:
    site.add(3)
    labeling.open(site.invite())
    page = labeling.page

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
        labeling.press("ArrowLeft")
        labeling.expect_saved(answered)
        assert rates() == [0.25, 0.25]
        act("slow")
        assert rates() == [1, 1]


def test_seeking_and_full_screen(site: Site, labeling: LabelingPage) -> None:
    site.add(1)
    labeling.open(site.invite())
    page = labeling.page
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


def test_an_answer_tells_how_long_its_clips_were_in_sight(site: Site, labeling: LabelingPage) -> None:
    site.add(2)
    page = labeling.page
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

"""What the labeling page shows beside the pairs: how far it is, and what the agent does meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.core.cache import cache
from django.utils import timezone
from playwright.sync_api import ViewportSize, expect

from human_feedback_site.feedback.models import Invite, Participation

if TYPE_CHECKING:
    from tests.e2e.browser.conftest import LabelingPage, Site

AHEAD = 8


def test_the_bar_moves_with_each_own_answer_and_says_when_training_starts(
    site: Site, labeling: LabelingPage
) -> None:
    site.set(pretrain_labels=3)
    site.add(4, phase="pretraining")
    labeling.open(site.invite())
    text, bar = labeling.page.locator("#progress-text"), labeling.page.locator("#progress progress")
    expect(text).to_have_text("0 of 3 answers before training starts")
    for key, expected in [("ArrowLeft", 1), ("ArrowDown", 1), ("ArrowUp", 2), ("ArrowRight", 3)]:
        labeling.press(key)
        expect(text).to_have_text(f"{expected} of 3 answers before training starts")
        expect(bar).to_have_js_property("value", expected)
    labeling.wait_for("empty")
    labeling.page.keyboard.press("z")
    expect(text).to_have_text("2 of 3 answers before training starts")
    labeling.press("ArrowLeft")
    labeling.expect_saved(4)
    site.add(1)
    cache.clear()  # in which the count is kept for some seconds
    labeling.page.reload()
    expect(text).to_have_text("4 of 100 answers")
    _ask_for(12, site)
    labeling.come_back()
    expect(text).to_have_text("You: 4 of 12 answers")
    labeling.press("ArrowLeft")
    expect(text).to_have_text("You: 5 of 12 answers")
    expect(labeling.page.locator("#progress-of-all")).to_have_text("Everyone: 5 of 100 answers")
    assert bar.evaluate("(bar) => [bar.value, bar.max]") == [5, 12]


def _ask_for(answers: int, site: Site) -> None:
    """Ask the only labeler for a number of answers, which then include all given so far."""
    expires_at = timezone.now() + timedelta(days=1)
    invite = Invite.objects.create(experiment=site.experiment, answers_wanted=answers, expires_at=expires_at)
    Participation.objects.update(invite=invite)


def test_while_nothing_is_to_be_judged_the_policy_is_seen_over_time(
    site: Site, labeling: LabelingPage
) -> None:
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


def test_without_a_connection_nine_pairs_are_here_and_then_it_does_not_say_go_on(
    site: Site, labeling: LabelingPage
) -> None:
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
    expect(away.locator("span:visible")).to_have_text(
        "No connection. Your answers are kept in this browser and sent when the site is back."
    )
    labeling.page.context.set_offline(offline=False)
    labeling.expect_saved(1 + AHEAD)
    labeling.wait_for("judging")


def test_whoever_leaves_a_pair_on_screen_keeps_it_from_nobody_and_may_come_back(
    site: Site, labeling: LabelingPage
) -> None:
    site.add(1)
    page = labeling.page
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


@pytest.mark.parametrize("width", [568, 740, 900])
def test_on_a_phone_on_its_side_answers_and_clips_are_in_sight(
    site: Site, labeling: LabelingPage, width: int
) -> None:
    site.add(2)
    labeling.page.set_viewport_size(ViewportSize(width=width, height=320 if width == 568 else 360))
    labeling.open(site.invite())
    labeling.watch()
    boxes = labeling.page.evaluate("""() => {
        const box = (each) => {
            const {left, top, right, bottom} = each.getBoundingClientRect();
            return [left, top, right, bottom];
        };
        return {
            answers: [...document.querySelectorAll(".answer")].map(box),
            clips: [...document.querySelectorAll(".frame")].map(box),
            undo: [box(document.querySelector("[data-action=undo]"))],
            screen: [innerWidth, innerHeight],
        };
    }""")
    for left, top, right, bottom in [*boxes["answers"], *boxes["clips"], *boxes["undo"]]:
        assert 0 <= left < right <= boxes["screen"][0]
        assert 0 <= top < bottom <= boxes["screen"][1]
    (_, _, first_right, _), (second_left, _, _, _) = boxes["clips"]
    for left, top, right, bottom in boxes["answers"]:
        assert first_right <= left
        assert right <= second_left
        assert bottom - top >= 40  # for a thumb
    assert min(right - left for left, _, right, _ in boxes["clips"]) > 150
    labeling.page.get_by_role("button", name="Left", exact=True).click()
    labeling.expect_saved(1)

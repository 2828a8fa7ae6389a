"""Undo through the last answers, the history page, the pace of the work and its end."""

import re
from datetime import timedelta

from django.db.models.functions import Now
from playwright.sync_api import expect

from human_feedback_site.feedback.models import Comparison, Label, Lease, Participation, Undo
from tests.e2e.browser.conftest import LabelingPage, Site


def test_answers_are_undone_one_after_the_other(site: Site, labeling: LabelingPage) -> None:
    site.add(5)
    labeling.open(site.invite())
    labeling.page.keyboard.press("z")
    expect(labeling.toast).to_have_text("There is no answer to undo.")
    assert not Undo.objects.exists()
    for answered in range(1, 4):
        labeling.press("ArrowLeft")
        labeling.expect_saved(answered)
    labeling.open(site.label_url)  # it is known after a reload, too
    for left in (2, 1, 0):
        labeling.page.keyboard.press("z")
        expect(labeling.answered).to_have_text(str(left))
        labeling.wait_for("judging")
    labels = site.labels()
    assert [undo.label for undo in Undo.objects.order_by("pk")] == labels[::-1]
    assert [site.decision(label.comparison) for label in labels] == [None] * 3
    labeling.page.keyboard.press("z")
    expect(labeling.toast).to_have_text("There is no answer to undo.")
    for answered in range(1, 4):  # the same pairs come back, the last undone first
        labeling.press(f"Arrow{labeling.side_of('blue').capitalize()}")
        labeling.expect_saved(answered)
    again = site.labels()[3:]
    assert [label.comparison for label in again] == [label.comparison for label in labels]
    assert {site.decision(label.comparison) for label in labels} == {"second"}


def test_a_mind_is_changed_on_the_history_page(site: Site, labeling: LabelingPage) -> None:
    site.add(2)
    labeling.open(site.invite())
    for answered, key in enumerate(("ArrowLeft", "ArrowUp"), 1):
        labeling.press(key)
        labeling.expect_saved(answered)
    page = labeling.page
    page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kathmandu"})
    page.keyboard.press("h")
    items = page.get_by_role("listitem")
    expect(items).to_have_count(2)
    oldest = items.nth(1)
    here = site.labels()[0].created_at + timedelta(hours=5, minutes=45)
    expect(oldest.locator("time")).to_have_text(
        re.compile(f"{here:%b} {here.day}, {here.year}.*:{here:%M:%S}")
    )
    expect(oldest.get_by_role("button", pressed=True)).to_have_text("Left")
    oldest.get_by_role("button", name="Play or pause both clips").click()
    expect(oldest.locator(".clips.playing")).to_be_visible()
    oldest.get_by_role("button", name="Right").click()
    expect(oldest.get_by_role("button", pressed=True)).to_have_text("Right")
    first, _, changed = site.labels()
    assert (first.choice, first.undo.label, changed.choice) == ("left", first, "right")
    assert site.decision(first.comparison) == {True: "first", False: "second"}[first.swapped]
    page.get_by_role("link", name="Back to the clips").click()
    labeling.wait_for("empty")
    expect(labeling.answered).to_have_text("2")


def test_other_pages_send_answers_of_a_closed_tab(site: Site, labeling: LabelingPage) -> None:
    site.add(7)
    labeling.open(site.invite())
    context = labeling.page.context
    for saved, path in enumerate(("/", "/experiments/hopper/history", "/experiments/hopper/done")):
        context.route("**/api/v1/**", lambda route: route.abort())
        for unsaved, key in enumerate(("ArrowLeft", "ArrowUp"), 1):
            labeling.press(key)
            expect(labeling.unsaved).to_contain_text(str(unsaved))
        other = context.new_page()
        labeling.page.close()
        other.goto(site.url + path)
        note = other.locator("#unsaved-note")
        expect(note).to_contain_text("Unsaved answers: 2")
        assert len(site.labels()) == 2 * saved
        context.unroute("**/api/v1/**")
        expect(note).to_be_hidden()
        expect(other.locator("#refused")).to_be_hidden()
        assert [label.choice for label in site.labels()[-2:]] == ["left", "equal"]
        if path.endswith("history"):
            expect(other.get_by_role("listitem")).to_have_count(2 * saved + 2)
        if path.endswith("done"):
            expect(other.locator("main")).to_contain_text(f"{2 * saved + 2} answers saved.")
        labeling = type(labeling)(other).open(site.label_url)


def test_other_pages_send_nothing_of_another_account(site: Site, labeling: LabelingPage) -> None:
    site.add(2)
    labeling.open(site.invite("mia"))
    context = labeling.page.context
    context.route("**/api/v1/labels", lambda route: route.abort())
    labeling.press("ArrowLeft")
    expect(labeling.unsaved).to_contain_text("1")
    labeling.page.goto("about:blank")
    context.unroute("**/api/v1/labels")
    other = context.new_page()
    other.goto(site.invite("leo"))
    other.get_by_role("button", name="Continue as leo").click()
    other.wait_for_selector("main[data-state=judging]")
    other.goto(f"{site.url}/experiments/hopper/history")
    expect(other.get_by_role("heading", name="You haven’t answered yet")).to_be_visible()
    expect(other.locator("#unsaved-note")).to_be_hidden()
    assert site.labels() == []
    Lease.objects.all().delete()  # it was forgotten meanwhile
    other.goto(site.invite("mia"))
    other.route("**/label", lambda route: route.fulfill(body="away"))
    other.get_by_role("button", name="Continue as mia").click()
    other.goto(site.url)
    expect(other.locator("#refused")).to_contain_text("The site rejected an answer: Lease ")
    assert site.labels() == []


def test_the_pace_is_shown_and_a_pause_suggested(site: Site, labeling: LabelingPage) -> None:
    site.add(6)
    page = labeling.page
    page.clock.install()
    labeling.open(site.invite())
    pace, rest = page.locator("#pace"), page.locator("#break")
    expect(pace).to_be_hidden()
    for answered in range(1, 4):
        labeling.wait_for("judging")
        page.clock.run_for(20_000)
        page.keyboard.press("ArrowLeft")
        labeling.expect_saved(answered)
    expect(pace).to_have_text(re.compile("[1-4][.][0-9] per minute"))  # beside those 20 s time goes by
    expect(rest).to_be_hidden()
    page.evaluate(
        """for (const [key, value] of Object.entries(sessionStorage)) if (key.includes("pace")) {
            const pace = JSON.parse(value);
            sessionStorage.setItem(key, JSON.stringify({ ...pace, since: pace.since - 25 * 60_000 }));
        }"""
    )
    labeling.open(site.label_url)
    page.clock.run_for(1_000)
    page.keyboard.press("ArrowLeft")
    expect(rest).to_contain_text("A short break helps keep your answers accurate.")
    rest.get_by_role("button", name="Continue").click()
    expect(rest).to_be_hidden()


def test_waiting_labelers_may_finish(site: Site, labeling: LabelingPage) -> None:
    site.add(1)
    page = labeling.page
    page.clock.install()
    labeling.open(site.invite())
    page.clock.run_for(1_000)
    page.keyboard.press("ArrowLeft")
    labeling.wait_for("empty")
    labeling.expect_saved(1)
    finish = page.get_by_role("link", name="Finish")
    for seconds in range(0, 192, 12):  # no longer than a request may take
        page.clock.run_for(12_000)
        page.wait_for_timeout(50)
        assert seconds >= 120 or not finish.is_visible(), seconds  # beside these steps time goes by
    # The site counts the three minutes, too, by its own clock.
    waiting = Participation.objects.exclude(empty_since=None)
    assert waiting.update(empty_since=Now() - timedelta(minutes=3)) == 1
    finish.click()
    expect(page.get_by_role("heading", name="Thank you!")).to_be_visible()
    expect(page.locator("main")).to_contain_text("1 answer saved.")
    assert Label.objects.count() == Comparison.objects.count() == 1


def test_careless_labelers_are_warned_and_stopped(site: Site, labeling: LabelingPage) -> None:
    site.add(3)
    labeling.open(site.invite())
    warning = labeling.page.locator("#warning")
    expect(warning).to_be_hidden()
    Participation.objects.update(gold_checks="0" * Participation.CHECKS_KEPT)
    labeling.come_back()
    expect(warning).to_contain_text("Please watch both clips to the end")
    warning.get_by_role("button", name="OK").click()
    expect(warning).to_be_hidden()
    labeling.press("ArrowLeft")
    labeling.expect_saved(1)
    Participation.objects.update(stopped_at=Now())
    labeling.come_back()
    labeling.wait_for("stopped")
    panel = labeling.page.locator("[data-panel=stopped]")
    expect(panel).to_contain_text("Your answers: 1")
    labeling.page.keyboard.press("ArrowLeft")
    labeling.page.wait_for_timeout(300)
    assert Label.objects.count() == 1

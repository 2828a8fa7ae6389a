"""The labeling page in Chromium, from the key to the row in the database."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Dialog, Page, Route, expect

from human_feedback_site.feedback.models import Comparison, Label
from tests.e2e.browser.conftest import LabelingPage, Site

LABELS = "**/api/v1/labels"
PROBLEM = "application/problem+json"
API = "**/api/v1/**"
PRESS = """
const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
"""


def replying(**reply: Any) -> Callable[[Route], None]:
    """Answer requests in the site's place."""
    return lambda route: route.fulfill(**reply)


def held_key(page: Page) -> None:
    for _ in range(6):
        page.keyboard.down("ArrowLeft")
    page.keyboard.up("ArrowLeft")


def two_presses(page: Page) -> None:
    page.evaluate(f"{PRESS} press('ArrowLeft'); press('ArrowLeft')")  # however long a message to it takes


def double_click(page: Page) -> None:
    page.get_by_role("button", name="Left", exact=True).evaluate("(it) => { it.click(); it.click(); }")


def test_each_way_to_answer_gives_one_label(site: Site, labeling: LabelingPage) -> None:
    labeling.begin(site, 11)
    page, answers = labeling.page, 0

    def expect_one_more() -> None:
        nonlocal answers
        answers += 1
        labeling.expect_saved(answers)

    for better in ("red", "blue", "blue", "red"):
        labeling.press(f"Arrow{labeling.side_of(better).capitalize()}")
        expect_one_more()
    for key in ("ArrowUp", "ArrowDown"):
        labeling.press(key)
        expect_one_more()
    for target in (page.locator(".clip").nth(1), page.get_by_role("button", name="Left", exact=True)):
        labeling.watch()
        target.click()
        expect_one_more()
    for clumsily in (held_key, two_presses, double_click):
        labeling.watch()
        clumsily(page)
        expect_one_more()
        page.wait_for_timeout(300)
        assert len(site.labels()) == answers, clumsily.__name__
    labeling.wait_for("held")
    labels = site.labels()
    decisions = [site.decision(label.comparison) for label in labels]
    assert decisions[:6] == ["first", "second", "second", "first", "equal", "cant_tell"]
    assert [label.choice for label in labels[6:8]] == ["right", "left"]
    assert len({label.comparison_id for label in labels}) == 11
    assert all(label.uuid.version == 4 for label in labels)
    assert all(label.response_ms is not None and label.response_ms >= 400 for label in labels)


def test_two_tabs_give_two_pairs_one_label_each(site: Site, labeling: LabelingPage) -> None:
    labeling.begin(site, 2)
    other = type(labeling)(labeling.page.context.new_page()).open(site.label_url)
    labeling.answer("ArrowLeft", 1)
    expect(other.answered).to_have_text("1")
    other.press("ArrowLeft")
    other.expect_saved(2)
    labeling.wait_for("held")
    assert len({label.comparison_id for label in site.labels()}) == len(site.labels()) == 2


REFUSALS: list[dict[str, Any]] = [
    {"status": 404},
    {"status": 409},
    {"status": 400, "errors": [{"pointer": "#", "detail": "x"}]},
]


def test_failed_requests_are_repeated_and_refused_answers_dropped(site: Site, labeling: LabelingPage) -> None:
    def lose_the_reply(route: Route) -> None:
        route.fetch()
        route.abort()

    labeling.begin(site, len(REFUSALS) + 3)
    full = json.dumps({"status": 503, "detail": "The disk of the database is full. Try again soon."})
    labeling.page.route(LABELS, replying(status=503, content_type=PROBLEM, body=full))
    labeling.press("ArrowLeft")
    away = labeling.page.locator("#away")
    expect(away).to_contain_text("The site can’t save answers right now.")
    expect(away.locator("span:visible").last).to_have_text(
        "You can keep answering: your answers are kept in this browser and sent when the site is back."
    )
    labeling.page.unroute(LABELS)
    labeling.expect_saved(1)
    expect(away).to_be_hidden()

    labeling.page.route(LABELS, lose_the_reply, times=1)
    labeling.press("ArrowLeft")
    expect(away).to_be_visible()
    labeling.expect_saved(2)
    assert len(site.labels()) == 2

    for problem in REFUSALS:
        why = f"No, because of {problem['status']}."
        body = json.dumps({**problem, "detail": why})
        labeling.page.route(LABELS, replying(status=problem["status"], body=body, content_type=PROBLEM))
        labeling.press("ArrowLeft")
        expect(labeling.toast).to_have_text(f"The site rejected an answer: {why}")
        expect(labeling.unsaved).to_be_hidden()
        labeling.page.unroute(LABELS)
    assert len(site.labels()) == 2


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_clips_come_straight_from_the_object_store(site: Site, labeling: LabelingPage) -> None:
    site.add(1)
    with labeling.page.expect_request_finished(lambda request: request.url.startswith(site.media_url)):
        labeling.open(site.invite())
    assert [video["videoWidth"] for video in labeling.videos()] == [128, 128]
    labeling.answer("ArrowLeft", 1)


AWAY = [{"status": 503, "body": "busy"}, {"status": 200, "body": "<h1>Welcome, room 12</h1>"}]
STUCK = [
    {"status": 404, "body": "<h1>No such backend</h1>"},
    {"status": 400, "body": "{}", "content_type": PROBLEM},  # names no error of the answer
]


def test_answers_survive_a_failing_site_and_a_reload(site: Site, labeling: LabelingPage) -> None:
    faults = AWAY + STUCK
    labeling.begin(site, 2 * len(faults) + 1)
    for answered, fault in enumerate(faults):
        labeling.page.route(LABELS, replying(**fault))
        labeling.press("ArrowLeft")
        labeling.press("ArrowUp")
        expect(labeling.unsaved).to_contain_text("2")
        if fault in AWAY:
            expect(labeling.page.locator("#away")).to_be_visible()
        else:
            expect(labeling.toast).to_contain_text(f"will be retried later: HTTP {fault['status']}")
        labeling.open(site.label_url)
        expect(labeling.unsaved).to_contain_text("2")
        expect(labeling.answered).to_have_text(str(2 * answered + 2))
        assert len(site.labels()) == 2 * answered
        labeling.page.unroute(LABELS)
        labeling.expect_saved(2 * answered + 2)
        choices = [label.choice for label in site.labels()[-2:]]
        # What was refused on the way may come after what was not tried yet.
        assert choices == ["left", "equal"] or (fault in STUCK and choices == ["equal", "left"])


def test_refused_answer_does_not_block_later_ones(site: Site, labeling: LabelingPage) -> None:
    def refuse_left(route: Route) -> None:
        is_left = '"left"' in (route.request.post_data or "")
        route.fulfill(status=413, body="too large") if is_left else route.continue_()

    labeling.begin(site, 4)
    labeling.page.route(LABELS, refuse_left)
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight"):
        labeling.press(key)
    while len(labels := site.labels()) < 2:
        labeling.page.wait_for_timeout(50)
    assert [label.choice for label in labels] == ["equal", "right"]
    expect(labeling.unsaved).to_contain_text("1")
    expect(labeling.page.locator("#away")).to_be_hidden()
    labeling.unsaved.click()
    dialog = labeling.page.locator("#unsaved-dialog")
    expect(dialog.locator("li")).to_contain_text("The left clip is better HTTP 413")
    dialog.get_by_role("button", name="Discard").click()
    expect(dialog).to_be_hidden()
    labeling.expect_saved(2)


def test_leaving_is_questioned_while_answers_are_in_memory_only(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    site.add(2)
    page.add_init_script(
        "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError') }"
    )
    labeling.open(site.invite())
    asked: list[str] = []

    def leave(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.on("dialog", leave)
    page.route(LABELS, lambda route: route.abort())
    labeling.press("ArrowLeft")
    expect(labeling.unsaved).to_contain_text("1")
    labeling.open(site.label_url)
    assert asked == ["beforeunload"]
    labeling.open(site.label_url)
    assert asked == ["beforeunload"]


def test_an_answer_is_sent_after_signing_in_again(site: Site, labeling: LabelingPage) -> None:
    labeling.begin(site, 4)
    name = site.give_password("mia")
    labeling.open(site.invite())
    dialog = labeling.page.locator("#signed-out")

    def answer_signed_out() -> None:
        labeling.page.wait_for_load_state("networkidle")  # else it fetches a pair and finds the session gone
        Session.objects.all().delete()
        labeling.press("ArrowLeft")
        expect(dialog).to_be_visible()

    answer_signed_out()
    expect(dialog).to_contain_text("Unsaved answers: 1")
    assert site.labels() == []
    dialog.get_by_role("link", name="Sign in").click()
    labeling.sign_in(name)
    labeling.wait_for("judging")
    labeling.expect_saved(1)
    assert [(label.choice, label.labeler.name) for label in site.labels()] == [("left", "mia")]

    answer_signed_out()
    other = labeling.page.context.new_page()
    type(labeling)(other).open(site.invite()).expect_saved(2)
    labeling.come_back()
    expect(dialog).to_be_hidden()
    labeling.answer("ArrowLeft", 3)


def test_answers_wait_for_the_account_that_gave_them(site: Site, labeling: LabelingPage) -> None:
    labeling.begin(site, 3)
    other = labeling.page.context.new_page()
    other.goto(site.invite("leo"))
    other.get_by_role("button", name="Continue as leo").click()
    other.wait_for_selector("main[data-state=judging]")
    labeling.press("ArrowUp")
    expect(labeling.page.locator("#other-account")).to_be_visible()
    expect(other.locator("#unsaved")).to_be_hidden()
    assert site.labels() == []
    other.goto(site.invite("mia"))
    other.get_by_role("button", name="Continue as mia").click()
    type(labeling)(other).expect_saved(1)
    assert [label.labeler.name for label in site.labels()] == ["mia"]


def test_the_page_follows_an_experiment(site: Site, labeling: LabelingPage) -> None:
    site.set(waiting_for=7)
    labeling.open(site.invite(), state="empty")
    panel = labeling.page.locator("[data-panel=empty]")
    expect(panel).to_contain_text("No pairs to judge right now")
    expect(panel).to_contain_text("Answers training is waiting for: 7")
    labeling.page.keyboard.press("ArrowLeft")
    site.add(3)
    labeling.wait_for("judging")
    labeling.answer("ArrowLeft", 1)
    site.set(state="paused")
    labeling.come_back()
    labeling.wait_for("paused")
    expect(labeling.page.locator(".bar [data-waiting]")).to_be_hidden()
    expect(labeling.page.get_by_role("heading", name="Paused")).to_be_visible()
    site.set(state="running")
    labeling.wait_for("judging")
    labeling.answer("ArrowLeft", 2)
    site.set(state="finished")
    labeling.come_back()
    labeling.wait_for("finished")
    expect(labeling.page.locator("[data-panel=finished]")).to_contain_text("Your answers: 2")
    labeling.page.context.set_offline(offline=True)  # as when the site ends with its run
    with labeling.page.expect_event("requestfailed", lambda request: "/leases" in request.url):
        labeling.come_back()
    labeling.page.wait_for_timeout(100)
    expect(labeling.page.locator("#away")).to_be_hidden()
    labeling.wait_for("finished")


def test_a_pair_that_was_cancelled_makes_way(site: Site, labeling: LabelingPage) -> None:
    site.add(2)
    with labeling.page.expect_request_finished(lambda request: '"shown":"' in (request.post_data or "")):
        labeling.open(site.invite())
    shown = Comparison.objects.get(leases__shown=True)
    Comparison.objects.filter(pk=shown.pk).update(status=Comparison.Status.CANCELLED)
    labeling.come_back()
    expect(labeling.toast).to_contain_text("Here is another")
    labeling.answer("ArrowLeft", 1)
    assert Label.objects.get().comparison != shown


def test_a_clip_that_cannot_be_played_is_said_and_not_judged(site: Site, labeling: LabelingPage) -> None:
    [uuid] = site.add(1)
    (site.media / f"hopper/{uuid}/first.mp4").write_bytes(b"not a clip at all")
    labeling.open(site.invite())
    expect(labeling.page.locator(".frame.unplayable")).to_have_count(1)
    labeling.press("ArrowLeft")
    expect(labeling.toast).to_contain_text("can’t be played")
    labeling.answer("ArrowDown", 1)
    assert Label.objects.get().choice == "cant_tell"


def test_clips_play_without_canplaythrough_events(site: Site, labeling: LabelingPage) -> None:
    [uuid] = site.add(1)
    (site.media / f"hopper/{uuid}/first.mp4").write_bytes(b"not a clip at all")
    labeling.page.add_init_script(
        """const listen = HTMLMediaElement.prototype.addEventListener;
        HTMLMediaElement.prototype.addEventListener = function (type, ...rest) {
            if (type !== "canplaythrough" && type !== "error") listen.call(this, type, ...rest);
        };"""
    )
    labeling.open(site.invite())
    expect(labeling.page.locator(".frame.unplayable")).to_have_count(1)
    labeling.page.wait_for_function("() => !document.querySelector('.frame video').paused")
    [video] = labeling.videos()
    assert video["videoWidth"] == 128


def test_keys_that_type_a_character_can_be_switched_off_for_good(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    labeling.begin(site, 1)
    box = page.get_by_role("checkbox", name="Use single-character shortcuts")
    undo, help_button = (page.get_by_role("button", name=name, exact=True) for name in ("Undo", "Help"))
    expect(undo).to_have_attribute("aria-keyshortcuts", "Z")
    page.keyboard.press("?")
    box.uncheck()
    for _ in range(2):
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.keyboard.press("z")
        expect(page.locator("#help")).to_be_hidden()
        expect(labeling.toast).not_to_have_text("There is no answer to undo.")
        assert undo.get_attribute("aria-keyshortcuts") is None
        expect(page.locator(".tools kbd").first).to_be_hidden()
        labeling.open(site.label_url)
    help_button.click()
    box.check()
    expect(undo).to_have_attribute("aria-keyshortcuts", "Z")
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    labeling.answer("ArrowUp", 1)


def test_keys_while_help_is_open_and_just_closed(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 1)
    labeling.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    labeling.wait_for("judging")
    assert site.labels() == []
    page.get_by_role("button", name="Help").click()
    page.get_by_role("checkbox", name="Use single-character shortcuts").focus()
    left_behind = page.evaluate("""() => {
        document.getElementById("help").close();
        const { activeElement } = document;
        const key = new KeyboardEvent("keydown", { key: "z", bubbles: true, cancelable: true });
        activeElement.dispatchEvent(key);
        return [activeElement.id, key.defaultPrevented];
    }""")
    assert left_behind == ["character-keys", True]
    expect(labeling.toast).to_have_text("There is no answer to undo.")


def test_chinese_page(site: Site, labeling: LabelingPage, new_page: Callable[[str], Page]) -> None:
    site.add(1)
    page = labeling.page = new_page("zh-CN")
    labeling.open(site.invite())
    assert page.locator("html").get_attribute("lang") == "zh-hans"
    expect(page.get_by_role("button", name="左边", exact=True)).to_be_visible()
    page.keyboard.press("z")
    expect(page.locator("#toast")).to_have_text("没有可以撤销的回答。")
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("button", name="Left", exact=True)).to_be_visible()

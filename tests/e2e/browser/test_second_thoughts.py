"""Undo through the last answers, the history page, the pace of the work and its end, and the keys."""

import re
from datetime import timedelta

from django.core.cache import cache
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from human_feedback_site.feedback.models import Comparison, Label, Lease, Participation, Undo
from tests.e2e.browser.conftest import LabelingPage, Site


def test_answers_are_undone_one_after_the_other(site: Site, labeling: LabelingPage) -> None:
    labeling.begin(site, 5)
    labeling.page.keyboard.press("z")
    expect(labeling.toast).to_have_text("There is no answer to undo.")
    assert not Undo.objects.exists()
    for answered in range(1, 4):
        labeling.answer("ArrowLeft", answered)
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
        labeling.answer(f"Arrow{labeling.side_of('blue').capitalize()}", answered)
    again = site.labels()[3:]
    assert [label.comparison for label in again] == [label.comparison for label in labels]
    assert {site.decision(label.comparison) for label in labels} == {"second"}


def test_a_mind_is_changed_on_the_history_page(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 2)
    for answered, key in enumerate(("ArrowLeft", "ArrowUp"), 1):
        labeling.answer(key, answered)
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
    labeling.begin(site, 7)
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
    labeling.begin(site, 2)
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


def test_time_left_is_shown_and_a_pause_suggested(site: Site, labeling: LabelingPage, page: Page) -> None:
    site.add(7)
    page.clock.install()
    labeling.open(site.invite())
    rest, left = page.locator("#break"), page.locator("#progress-text")
    for answered in range(1, 5):
        expect(left).to_have_text(f"{answered - 1} of 100 answers")
        labeling.wait_for("judging")
        cache.clear()  # in which the count is kept for some seconds, of which the page has others
        page.clock.run_for(20_000)
        page.keyboard.press("ArrowLeft")
        labeling.expect_saved(answered)
    expect(left).to_have_text(re.compile("4 of 100 answers, about [3-9][0-9] minutes"))  # time goes by, too
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


def test_waiting_labelers_may_finish(site: Site, labeling: LabelingPage, page: Page) -> None:
    site.add(1)
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
    labeling.begin(site, 3)
    warning = labeling.page.locator("#warning")
    expect(warning).to_be_hidden()
    Participation.objects.update(gold_checks="0" * Participation.CHECKS_KEPT)
    labeling.come_back()
    expect(warning).to_contain_text("Please watch both clips to the end")
    warning.get_by_role("button", name="OK").click()
    expect(warning).to_be_hidden()
    labeling.answer("ArrowLeft", 1)
    Participation.objects.update(stopped_at=Now())
    labeling.come_back()
    labeling.wait_for("stopped")
    panel = labeling.page.locator("[data-panel=stopped]")
    expect(panel).to_contain_text("Your answers: 1")
    labeling.page.keyboard.press("ArrowLeft")
    labeling.page.wait_for_timeout(300)
    assert Label.objects.count() == 1


def change(page: Page, shortcut: str, *keys: str) -> None:
    page.locator(f"[data-shortcut={shortcut}]:visible").click()
    expect(page.locator("#key-note")).to_have_text("Press the new key, or Esc to cancel.")
    for key in keys:
        page.keyboard.press(key)


def test_a_key_is_changed_for_good_and_shown_everywhere(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    labeling.begin(site, 3)
    left = page.get_by_role("button", name="Left", exact=True)
    page.keyboard.press("?")
    expect(page.get_by_role("button", name="← The left clip is better")).to_be_visible()
    change(page, "left", "Shift", "a")
    expect(page.locator("#key-note")).to_have_text("The new key is A.")
    change(page, "undo", "Backspace")
    expect(page.get_by_role("button", name="⌫ Undo the last answer")).to_be_visible()
    page.keyboard.press("Escape")
    for _ in range(2):
        expect(left).to_have_attribute("aria-keyshortcuts", "A")
        expect(left.locator("kbd")).to_have_text("A")
        expect(page.locator(".tools kbd").first).to_have_text("⌫")
        page.keyboard.press("ArrowLeft")  # does nothing any more
        labeling.press("A")  # as with caps lock
        labeling.expect_saved(1)
        page.keyboard.press("Backspace")
        labeling.expect_saved(0)
        labeling.open(site.label_url)
    page.keyboard.press("?")
    page.get_by_role("button", name="Reset all keys").click()
    expect(page.locator("#key-note")).to_have_text("All keys have been reset.")
    page.keyboard.press("Escape")
    expect(left).to_have_attribute("aria-keyshortcuts", "ArrowLeft")
    labeling.answer("ArrowLeft", 1)


def test_help_fits_a_laptop_and_its_note_stays_visible(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    site.explain("first", "It goes up.")
    site.film(20_480)
    site.add(1)
    page.goto(site.invite())
    expect(page.locator("#examples")).to_be_visible()
    page.keyboard.press("Escape")
    labeling.wait_for("judging")
    expect(page.locator(".tools [data-action=episode]")).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("button", name="Help").click()
    assert page.evaluate("(({ scrollHeight: all, clientHeight: seen }) => all - seen)(help)") <= 0
    page.set_viewport_size({"width": 360, "height": 640})
    change(page, "left", "a")
    expect(page.locator("#key-note")).to_have_text("The new key is A.")
    expect(page.locator("#key-note")).to_be_in_viewport()


def test_keys_are_swapped_refused_and_switched_off(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 4)
    note, reset = page.locator("#key-note"), page.locator("#reset-keys")
    page.keyboard.press("?")
    change(page, "left", "F5")
    expect(note).to_have_text("That key can’t be used. Press another one, or Esc to cancel.")
    page.keyboard.press("Escape")
    expect(note).to_contain_text("To change a key")
    expect(page.locator("#help")).to_be_visible()
    # The key that presses the button is not the new one.
    page.locator("[data-shortcut=left]:visible").focus()
    page.keyboard.down("Enter")
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(note).to_have_text("Press the new key, or Esc to cancel.")
    page.keyboard.press("Tab")
    expect(page.locator("[data-shortcut=right]:visible")).to_be_focused()
    change(page, "left")
    page.locator("#help-title").click()
    expect(page.locator("[aria-pressed=true]")).to_have_count(0)
    expect(reset).to_be_hidden()

    change(page, "left", "ArrowRight")
    expect(note).to_have_text("The keys → and ← have been swapped.")
    change(page, "equal", "Space")
    expect(note).to_have_text("The keys Space and ↑ have been swapped.")
    page.keyboard.press("Escape")
    labeling.answer("ArrowRight", 1)
    labeling.answer("Space", 2)

    page.keyboard.press("?")
    change(page, "left", "a")
    change(page, "undo", "Delete")
    page.get_by_role("checkbox", name="Use single-character shortcuts").uncheck()
    page.keyboard.press("Escape")
    left = page.get_by_role("button", name="Left", exact=True)
    expect(left.locator("kbd")).to_be_hidden()
    assert left.get_attribute("aria-keyshortcuts") is None
    labeling.press("a")
    labeling.answer("ArrowLeft", 3)
    assert [label.choice for label in site.labels()] == ["left", "equal", "right"]
    page.keyboard.press("Delete")
    labeling.expect_saved(2)


# A key press by what it types and which key it is, and the shortcuts that it may have.
LAYOUTS = {
    "Russian": [("Я", "KeyZ", ["я", "z"]), ("б", "Comma", ["б", ","]), ("ю", "Period", ["ю", "."])],
    "Russian, on the key of the slash": [(".", "Slash", [".", "/"]), ("?", "Digit7", ["?", "7"])],
    "Greek": [("ζ", "KeyZ", ["ζ", "z"]), ("ς", "KeyW", ["ς", "w"])],
    "Hebrew": [("ז", "KeyZ", ["ז", "z"]), ("/", "KeyQ", ["/", "q"])],
    "Arabic": [("ئ", "KeyZ", ["ئ", "z"]), ("٣", "Digit3", ["٣", "3"])],
    "Pinyin": [("Process", "KeyZ", ["Process", "z"])],
    "AZERTY": [("w", "KeyZ", ["w"]), ("z", "KeyW", ["z"]), ("é", "Digit2", ["é"])],
    "Dvorak": [("o", "KeyS", ["o"]), ("s", "Semicolon", ["s"]), (",", "KeyW", [",", "w"])],
    "any": [("ArrowLeft", "ArrowLeft", ["ArrowLeft"]), (" ", "Space", [" "]), ("F5", "F5", ["F5"])],
}


def press(page: Page, key: str, code: str) -> None:
    page.evaluate(
        """([key, code]) => document.body.dispatchEvent(
            new KeyboardEvent("keydown", { key, code, bubbles: true, cancelable: true }))""",
        [key, code],
    )


def test_letters_are_found_in_every_keyboard_layout(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 2)
    script = page.locator("script[src$='label.js']").get_attribute("src")
    assert script is not None
    for layout, presses in LAYOUTS.items():
        for key, code, keys in presses:
            found = page.evaluate(
                """async ([url, press]) => (await import(url)).keysOf({ shiftKey: false, ...press })""",
                [script.replace("label.js", "keys.js"), {"key": key, "code": code}],
            )
            assert found == keys, layout
    labeling.answer("ArrowLeft", 1)
    press(page, "я", "KeyZ")
    labeling.expect_saved(0)
    page.keyboard.press("?")
    for key, code, stored in ((";", "KeyQ", ";"), ("ф", "KeyA", "A")):  # on a Greek and on a Russian keyboard
        change(page, "left")
        press(page, key, code)
        expect(page.locator("#key-note")).to_have_text(f"The new key is {stored}.")
    page.keyboard.press("Escape")
    labeling.watch()
    press(page, "ф", "KeyA")
    labeling.expect_saved(1)
    labeling.answer("a", 2)


def test_history_key_and_escape_close_the_history(site: Site, labeling: LabelingPage, page: Page) -> None:
    labeling.begin(site, 1)
    for opens, closes in (("h", "h"), ("h", "Escape"), ("j", "j")):
        if opens == "j":
            page.keyboard.press("?")
            change(page, "history", "j")
            page.keyboard.press("Escape")
        page.keyboard.press(opens)
        page.wait_for_url("**/history")
        page.wait_for_load_state()
        page.keyboard.press(closes)
        page.wait_for_url("**/label")
        labeling.wait_for("judging")


def test_damaged_keys_in_the_browser_are_the_original_ones(
    site: Site, labeling: LabelingPage, page: Page
) -> None:
    labeling.begin(site, 1)
    account = page.evaluate("JSON.parse(document.getElementById('page').textContent).account")
    for damaged in ("{", '{"left": "z", "undo": "z"}', '{"left": "F5", "fly": "a", "undo": 7}'):
        page.evaluate(
            "([name, value]) => localStorage.setItem(name, value)", [f"rl-teacher.keys.{account}", damaged]
        )
        page.reload()
        labeling.wait_for("judging")
        kept = [kbd.text_content() for kbd in page.locator(".answers:visible kbd").all()]
        assert kept == ["←", "↑", "↓", "→"], damaged
        expect(page.locator("#reset-keys")).to_be_hidden()
    # A key that was free until a shortcut was added.
    page.evaluate(
        "([name, value]) => localStorage.setItem(name, value)",
        [f"rl-teacher.keys.{account}", '{"undo": "1"}'],
    )
    page.reload()
    labeling.wait_for("judging")
    expect(page.locator(".tools kbd").first).to_have_text("1")
    levels = page.locator("[data-kinds=rating].answers kbd").all()
    assert [kbd.text_content() for kbd in levels] == ["Z", "2", "3", "4", "5", "↓"]

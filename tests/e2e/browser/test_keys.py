"""Labelers change the keys of the labeling page."""

from playwright.sync_api import Page, expect

from tests.e2e.browser.conftest import LabelingPage, Site


def change(page: Page, shortcut: str, *keys: str) -> None:
    page.locator(f"[data-shortcut={shortcut}]").click()
    expect(page.locator("#key-note")).to_have_text("Press the new key, or Esc to cancel.")
    for key in keys:
        page.keyboard.press(key)


def test_a_key_is_changed_for_good_and_shown_everywhere(site: Site, labeling: LabelingPage) -> None:
    site.add(3)
    labeling.open(site.invite())
    page = labeling.page
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
    labeling.press("ArrowLeft")
    labeling.expect_saved(1)


def test_help_fits_a_laptop_and_its_note_stays_visible(site: Site, labeling: LabelingPage) -> None:
    site.explain("first", "It goes up.")
    site.film(20_480)
    site.add(1)
    page = labeling.page
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


def test_keys_are_swapped_refused_and_switched_off(site: Site, labeling: LabelingPage) -> None:
    site.add(4)
    labeling.open(site.invite())
    page = labeling.page
    note, reset = page.locator("#key-note"), page.locator("#reset-keys")
    page.keyboard.press("?")
    change(page, "left", "F5")
    expect(note).to_have_text("That key can’t be used. Press another one, or Esc to cancel.")
    page.keyboard.press("Escape")
    expect(note).to_contain_text("To change a key")
    expect(page.locator("#help")).to_be_visible()
    # The key that presses the button is not the new one.
    page.locator("[data-shortcut=left]").focus()
    page.keyboard.down("Enter")
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(note).to_have_text("Press the new key, or Esc to cancel.")
    page.keyboard.press("Tab")
    expect(page.locator("[data-shortcut=right]")).to_be_focused()
    change(page, "left")
    page.locator("#help-title").click()
    expect(page.locator("[aria-pressed=true]")).to_have_count(0)
    expect(reset).to_be_hidden()

    change(page, "left", "ArrowRight")
    expect(note).to_have_text("The keys → and ← have been swapped.")
    change(page, "equal", "Space")
    expect(note).to_have_text("The keys Space and ↑ have been swapped.")
    page.keyboard.press("Escape")
    labeling.press("ArrowRight")
    labeling.expect_saved(1)
    labeling.press("Space")
    labeling.expect_saved(2)

    page.keyboard.press("?")
    change(page, "left", "a")
    change(page, "undo", "Delete")
    page.get_by_role("checkbox", name="Use single-character shortcuts").uncheck()
    page.keyboard.press("Escape")
    left = page.get_by_role("button", name="Left", exact=True)
    expect(left.locator("kbd")).to_be_hidden()
    assert left.get_attribute("aria-keyshortcuts") is None
    labeling.press("a")
    labeling.press("ArrowLeft")
    labeling.expect_saved(3)
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


def test_letters_are_found_in_every_keyboard_layout(site: Site, labeling: LabelingPage) -> None:
    site.add(2)
    labeling.open(site.invite())
    page = labeling.page
    script = page.locator("script[src$='label.js']").get_attribute("src")
    assert script is not None
    for layout, presses in LAYOUTS.items():
        for key, code, keys in presses:
            found = page.evaluate(
                """async ([url, press]) => (await import(url)).keysOf({ shiftKey: false, ...press })""",
                [script.replace("label.js", "keys.js"), {"key": key, "code": code}],
            )
            assert found == keys, layout
    labeling.press("ArrowLeft")
    labeling.expect_saved(1)
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
    labeling.press("a")
    labeling.expect_saved(2)


def test_history_key_and_escape_close_the_history(site: Site, labeling: LabelingPage) -> None:
    site.add(1)
    labeling.open(site.invite())
    page = labeling.page
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


def test_damaged_keys_in_the_browser_are_the_original_ones(site: Site, labeling: LabelingPage) -> None:
    site.add(1)
    labeling.open(site.invite())
    page = labeling.page
    account = page.evaluate("JSON.parse(document.getElementById('page').textContent).account")
    for damaged in ("{", '{"left": "z"}', '{"left": "F5", "fly": "a", "undo": 7}'):
        page.evaluate(
            "([name, value]) => localStorage.setItem(name, value)", [f"rl-teacher.keys.{account}", damaged]
        )
        page.reload()
        labeling.wait_for("judging")
        kept = [kbd.text_content() for kbd in page.locator(".answers kbd").all()]
        assert kept == ["←", "↑", "↓", "→"], damaged
        expect(page.locator("#reset-keys")).to_be_hidden()

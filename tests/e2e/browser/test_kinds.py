"""Questions of each kind on the labeling page, from the press to the row in the database."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from human_feedback_site.feedback.kinds import CANT_TELL, KINDS
from human_feedback_site.feedback.models import Undo
from tests.e2e.browser.conftest import LabelingPage, Site, faults

Act = Callable[[Page], None]


def key(*names: str) -> Act:
    """Press keys, one after the other."""

    def act(page: Page) -> None:
        for name in names:
            page.keyboard.press(name)

    return act


def button(*names: str) -> Act:
    """Press buttons below the clips."""

    def act(page: Page) -> None:
        for name in names:
            page.locator(".answers:visible").get_by_role("button", name=name, exact=True).click()

    return act


def clip(*places: int, shift: bool = False) -> Act:
    """Click the clips in some places, counted from 1."""

    def act(page: Page) -> None:
        for place in places:
            page.locator(".clip").nth(place - 1).click(modifiers=["Shift"] if shift else [])

    return act


def answer_by_each(site: Site, labeling: LabelingPage, acts: list[tuple[Act, str, str]]) -> None:
    """Answer by each act; expect its choice, and its answer in terms of items in order and reversed."""
    for number, (act, choice, meaning) in enumerate(acts, int(labeling.answered.inner_text()) + 1):
        labeling.watch()
        swapped = labeling.videos()[0]["color"] == "blue"  # the first item is red; one alone is not swapped
        act(labeling.page)
        labeling.expect_saved(number)
        label = site.labels()[-1]
        assert label.choice == choice
        straight, reverse = meaning.split("/") if "/" in meaning else (meaning, meaning)
        assert label.answer == (reverse if swapped else straight), choice


def open_kind(site: Site, labeling: LabelingPage, kind: str, count: int) -> Page:
    """Open the page with questions of a kind, which has nothing wrong with it."""
    site.add(count, kind=kind)
    labeling.open(site.invite())
    page = labeling.page
    expect(page.locator("main")).to_have_attribute("data-kind", kind)
    assert faults(page) == []
    page.set_viewport_size({"width": 1280, "height": 800})
    return page


def test_graded_pairs(site: Site, labeling: LabelingPage) -> None:
    page = open_kind(site, labeling, "graded", 10)
    clearly_left, slightly_left = "clearly_first/clearly_second", "slightly_first/slightly_second"
    clearly_right, slightly_right = "clearly_second/clearly_first", "slightly_second/slightly_first"
    acts: list[tuple[Act, str, str]] = [
        (key("ArrowLeft"), "slightly_left", slightly_left),
        (key("Shift+ArrowLeft"), "clearly_left", clearly_left),
        (key("ArrowRight"), "slightly_right", slightly_right),
        (key("Shift+ArrowRight"), "clearly_right", clearly_right),
        (key("ArrowUp"), "equal", "equal"),
        (key("ArrowDown"), "cant_tell", "cant_tell"),
        (clip(2), "slightly_right", slightly_right),
        (clip(1, shift=True), "clearly_left", clearly_left),
        (button("Right slightly"), "slightly_right", slightly_right),
    ]
    answer_by_each(site, labeling, acts)
    expect(
        page.get_by_role("status").filter(has_text="The right clip is slightly better. Next pair.")
    ).to_have_count(1)
    page.keyboard.press("?")
    page.locator("[data-shortcut=clearly_right]:visible").click()
    page.keyboard.press("Shift+K")
    expect(page.locator("#key-note")).to_have_text("The new key is ⇧K.")
    page.keyboard.press("Escape")
    last = button("Right clearly")
    expect(page.locator(".answer[data-choice=clearly_right]")).to_have_attribute(
        "aria-keyshortcuts", "Shift+K"
    )
    page.keyboard.press("k")  # does nothing
    answer_by_each(site, labeling, [(key("Shift+K"), "clearly_right", clearly_right)])
    page.keyboard.press("z")
    labeling.expect_saved(9)
    labeling.wait_for("judging")
    labeling.watch()
    last(page)
    labeling.expect_saved(10)


def test_ratings(site: Site, labeling: LabelingPage) -> None:
    site.set(lowest_rating="falls over", highest_rating="a full flip")
    page = open_kind(site, labeling, "rating", 7)
    expect(page.locator(".clip:visible")).to_have_count(1)
    expect(page.locator(".ends")).to_have_text("falls over a full flip")
    labeling.watch()
    page.locator(".clip").first.click(force=True)  # does nothing
    page.keyboard.press("ArrowLeft")  # neither
    acts: list[tuple[Act, str, str]] = [(key(level), level, level) for level in "12345"]
    answer_by_each(
        site,
        labeling,
        [*acts, (button("5 a full flip"), "5", "5"), (key("ArrowDown"), "cant_tell", "cant_tell")],
    )
    labels = site.labels()
    assert site.decision(labels[2].comparison) == "3"
    page.keyboard.press("z")
    labeling.expect_saved(6)
    labeling.wait_for("judging")
    page.keyboard.press("?")
    help_dialog = page.locator("#help")
    expect(help_dialog).to_contain_text("Rating: 1 (falls over)")
    expect(help_dialog.get_by_text("The left clip is better", exact=False).first).to_be_hidden()
    page.locator("[data-shortcut='2']:visible").click()
    page.keyboard.press("ArrowLeft")  # the key of another kind's shortcut is free
    expect(page.locator("#key-note")).to_have_text("The new key is ←.")
    page.keyboard.press("Escape")
    expect(page.locator(".answer[data-choice='2']:visible kbd")).to_have_text("←")
    answer_by_each(site, labeling, [(key("ArrowLeft"), "2", "2")])


def test_best_and_worst_of_four(site: Site, labeling: LabelingPage) -> None:
    page = open_kind(site, labeling, "best_worst", 5)
    step, chosen = page.locator(".step"), page.locator(".stage .frame.better")
    labeling.watch()
    for clear in ("2", "z", "Escape"):
        page.keyboard.press("2")
        expect(step).to_have_text("Best: 2. Now choose the worst.")
        expect(chosen).to_have_attribute("data-number", "2")
        expect(page.get_by_role("button", name="2", exact=True, pressed=True)).to_be_visible()
        page.keyboard.press(clear)
        expect(step).to_have_text("Choose the best")
        expect(chosen).to_have_count(0)
    acts: list[tuple[Act, str, str]] = [
        (key("2", "4"), "2>4", "2>4/3>1"),
        (clip(1, 3), "1>3", "1>3/4>2"),
        (button("4", "1"), "4>1", "4>1/1>4"),
        (key("3", "ArrowDown"), "cant_tell", "cant_tell"),
    ]
    answer_by_each(site, labeling, acts)
    assert not Undo.objects.exists()
    expect(chosen).to_have_count(0)
    page.keyboard.press("1")
    page.keyboard.press("z")  # takes back the best
    page.keyboard.press("z")  # undoes the answer
    labeling.expect_saved(3)
    labeling.wait_for("judging")
    answer_by_each(site, labeling, [])
    page.keyboard.press("h")
    oldest = page.get_by_role("listitem").last
    expect(oldest.locator("video")).to_have_count(4)
    oldest.get_by_role("button", name="Play or pause", exact=True).click()
    expect(oldest.locator(".clips.playing")).to_be_visible()
    oldest.get_by_role("combobox", name="Your answer").select_option("Best: 3, worst: 1")
    oldest.get_by_role("button", name="Change").click()
    expect(oldest.get_by_role("combobox")).to_have_value("3>1")
    assert site.labels()[-1].answer == ("2>4" if site.labels()[0].swapped else "3>1")


def test_the_script_knows_the_kinds_as_the_site_does(site: Site, labeling: LabelingPage) -> None:
    labeling.open(site.invite(), state="empty")
    script = labeling.page.locator("script[src$='label.js']").get_attribute("src")
    assert script is not None
    sizes, close = labeling.page.evaluate(
        """async ([url, kinds]) => {
            const { KINDS, isClose } = await import(url);
            const sizes = Object.entries(KINDS).map(([name, { clips }]) => [name, clips.length]);
            const asked = kinds.flatMap(([name, choices]) =>
                choices.flatMap((choice) => choices.map((known) => [name, choice, known])));
            return [sizes, asked.filter(([name, choice, known]) => isClose(KINDS[name], choice, known))];
        }""",
        [
            script.replace("label.js", "kinds.js"),
            [(name, list(kind.choices)) for name, kind in KINDS.items()],
        ],
    )
    assert dict(sizes) == {name: kind.size for name, kind in KINDS.items()}
    assert [tuple(each) for each in close] == [
        (name, choice, known)
        for name, kind in KINDS.items()
        for choice in kind.choices
        for known in kind.choices
        if choice != known
        and CANT_TELL not in {choice, known}
        and kind.passes(*(kind.meaning_of(each, swapped=False) for each in (choice, known)))
    ]


def test_the_kind_changes_from_question_to_question(site: Site, labeling: LabelingPage) -> None:
    site.explain("1>4", "The first turns over.", kind="best_worst")
    site.explain("4", "It nearly turns over.", practice=True, kind="rating")
    site.add(1)
    page = labeling.page
    page.goto(site.invite())
    examples = page.locator("#examples")
    expect(examples.locator(".frame video")).to_have_count(4)
    expect(examples).to_contain_text("Answer: Best: ")
    for mark in ("better", "worse"):
        expect(examples.locator(f".frame.{mark}")).to_have_count(1)
    page.keyboard.press("Escape")
    labeling.wait_for("practice")
    main = page.locator("main")
    expect(main).to_have_attribute("data-kind", "rating")
    labeling.press("5")
    expect(page.locator("#feedback.right")).to_contain_text("Close. Our answer: Rating: 4")
    page.keyboard.press("Enter")
    labeling.wait_for("judging")
    expect(main).to_have_attribute("data-kind", "pair")
    labeling.answer("ArrowLeft", 1)
    labeling.wait_for("held")
    site.add(1, kind="rating")
    labeling.come_back()
    labeling.wait_for("judging")
    expect(main).to_have_attribute("data-kind", "rating")
    expect(page.get_by_role("button", name="Left", exact=True)).to_be_hidden()
    labeling.answer("4", 2)
    labeling.wait_for("empty")
    expect(page.get_by_role("heading", name="Nothing to judge right now")).to_be_visible()
    for left, kind in ((1, "rating"), (0, "pair")):
        page.keyboard.press("z")
        labeling.expect_saved(left)
        labeling.wait_for("judging")
        expect(main).to_have_attribute("data-kind", kind)
    labeling.answer("ArrowRight", 1)
    assert [label.choice for label in site.labels()] == ["left", "4", "right"]

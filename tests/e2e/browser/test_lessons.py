"""Examples and practice before a labeler's first pair, and a film of the policy beside the pairs."""

from playwright.sync_api import expect

from tests.e2e.browser.conftest import LabelingPage, Site


def test_examples_and_practice_come_once_before_the_first_pair(site: Site, labeling: LabelingPage) -> None:
    site.explain("first", "It goes up.")
    site.explain("first", "It goes up, too.", practice=True)
    site.explain("equal", "Neither <b>moves</b>.", practice=True)
    site.add(2)
    page = labeling.page
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
    labeling.press("ArrowUp")
    labeling.expect_saved(1)
    assert [label.choice for label in site.labels()] == ["equal"]
    page.evaluate("localStorage.clear()")
    labeling.open(site.label_url)


def test_a_practice_whose_examples_cannot_be_read_is_left_out(site: Site, labeling: LabelingPage) -> None:
    site.explain("first", "It goes up.", practice=True)
    site.add(1)
    labeling.page.route("**/examples", lambda route: route.abort())
    labeling.open(site.invite())


def test_the_latest_episode_is_watched_beside_the_pairs(site: Site, labeling: LabelingPage) -> None:
    site.add(1)
    labeling.open(site.invite())
    page = labeling.page
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
    labeling.press("ArrowLeft")
    labeling.expect_saved(1)

"""Sheets of the labeling page in each state, and of a labeler's other pages."""

from typing import Any
from uuid import uuid4

from playwright.sync_api import Page

from scripts.sheets.acts import JUDGING, presses, sees, shows
from scripts.sheets.album import NOTHING, PHONE, WIDE, Album, screenshot
from scripts.site_pictures import STUDY, save_side_by_side


def make_labeler_sheets(album: Album) -> None:
    """Make sheets of the labeling page in each state and of a labeler's other pages."""
    from human_feedback_site.feedback.models import Labeler  # noqa: PLC0415
    from human_feedback_site.feedback.services import moderation  # noqa: PLC0415

    at, experiment = f"{album.path}/label", album.world.experiment
    chen = Labeler.objects.get(name="chen").user
    album.sheet("home-labeler", "/", chen)
    album.sheet("history", f"{album.path}/history", chen)
    moderation.request_label(experiment.comparisons.filter(status="answered"))
    album.sheet("label", at, chen, presses())
    album.sheet("label-slow-paused", at, chen, presses("s", "p"))
    album.sheet("label-help", at, chen, presses("?"))
    album.sheet("label-help-keys", at, chen, changes_keys)
    album.sheet("label-news", at, chen, hears_news)
    album.sheet("label-episode", at, chen, episode)
    album.sheet("label-offline", at, chen, loses_the_connection)
    album.sheet("label-unsaved", at, chen, looks_at_unsaved)
    album.sheet("label-unreachable", at, chen, comes_back_to_nothing)
    album.sheet("label-warned", at, chen, shows("warning"))
    album.sheet("label-pause-suggested", at, chen, shows("break"))
    with album.state("paused"):
        album.sheet("label-paused", at, chen, sees("main[data-state=paused]"))
    out = album.labeler("out")
    album.sheet("label-gone", at, out, lambda page: shut_out(page, out))
    make_kind_sheets(album)
    teach(experiment)
    new = album.labeler("new")
    album.sheet("label-examples", at, new, sees("#examples[open] video"))
    album.sheet("label-practice", at, new, practices)
    album.sheet("label-practice-feedback", at, new, hears)
    if not album.names:
        picture_labeling(album, chen, new)


def make_kind_sheets(album: Album) -> None:
    """Make sheets of the labeling page with a question of each other kind, made of the clips of two pairs."""
    from human_feedback_site.feedback.kinds import ITEMS, KINDS  # noqa: PLC0415
    from human_feedback_site.feedback.models import Comparison  # noqa: PLC0415

    experiment = album.world.experiment
    pairs = experiment.comparisons.filter(kind="pair").exclude(status="cancelled").order_by("-step")[:2]
    keys = [key for pair in pairs for key in pair.keys]
    for kind in KINDS.keys() - {"pair"}:
        used = {f"{item}_key": key for item, key in zip(ITEMS[: KINDS[kind].size], keys, strict=False)}
        act = presses("2") if KINDS[kind].size > 2 else presses()
        asked = Comparison.objects.create(
            experiment=experiment, uuid=uuid4(), kind=kind, phase="training", step=0, priority=1000, **used
        )
        name = f"label-{kind.replace('_', '-')}"
        album.sheet(name, f"{album.path}/label", album.labeler(name), act)
        Comparison.objects.filter(pk=asked.pk).update(status=Comparison.Status.CANCELLED)


def picture_labeling(album: Album, labeler: Any, newcomer: Any) -> None:
    """Save screenshots of the labeling page for the README and docs/labeling.md."""
    parts: dict[str, list[bytes]] = {"labeling": [], "labeling-narrow": []}
    for name, user, act, dark, locale in (
        ("labeling", labeler, presses(), False, "en-US"),
        ("labeling-narrow", labeler, presses(), False, "en-US"),
        ("labeling-narrow", labeler, presses(), True, "zh-CN"),
        ("labeling-narrow", newcomer, hears, False, "en-US"),
        ("labeling-narrow", labeler, episode, True, "zh-CN"),
    ):
        size = WIDE if name == "labeling" else PHONE
        with album.world.page(f"{album.path}/label", size, dark=dark, locale=locale, user=user) as page:
            act(page)
            parts[name].append(screenshot(page))
    for name, pictures in parts.items():
        save_side_by_side(name, pictures)


def changes_keys(page: Page) -> None:
    """Open the help and give both clips keys on the left of the keyboard."""
    presses("?", after="#help[open]")(page)
    for shortcut, key in (("left", "a"), ("right", "d")):
        page.locator(f"#help [data-shortcut={shortcut}]:visible").click()
        page.keyboard.press(key)


def hears_news(page: Page) -> None:
    """Answer a pair after the newest video appears, as if it were the first since the last visit."""
    page.wait_for_selector(".tools [data-action=episode]:not([hidden])")
    page.evaluate(
        "Object.keys(localStorage).filter((key) => key.startsWith('rl-teacher.news.'))"
        ".forEach((key) => localStorage.setItem(key, '0'))"
    )
    with page.expect_response("**/progress"):
        page.reload()
    presses("ArrowLeft", after="#news:not([hidden])")(page)
    presses()(page)


def episode(page: Page) -> None:
    """Open the newest episode video on the labeling page."""
    page.wait_for_selector(".tools [data-action=episode]:not([hidden])")
    presses("e")(page)
    page.wait_for_selector("#episode:not([hidden])")
    page.wait_for_timeout(1200)


def loses_the_connection(page: Page) -> None:
    """Block the API and answer twice."""
    page.wait_for_selector(JUDGING, state="attached")
    page.route("**/api/**", lambda route: route.abort())
    for _ in range(2):
        page.wait_for_selector(JUDGING, state="attached")
        page.wait_for_timeout(700)
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#away:not([hidden])")


def looks_at_unsaved(page: Page) -> None:
    """Lose the connection and open the list of unsaved answers."""
    loses_the_connection(page)
    page.locator("#unsaved").click()


def comes_back_to_nothing(page: Page) -> None:
    """Block the API, hide the tab for a while and show it again."""
    page.wait_for_selector(JUDGING, state="attached")
    page.route("**/api/**", lambda route: route.abort())
    for away, stays in (("true", 6_000), ("false", 0)):
        page.evaluate(
            f"Object.defineProperty(document, 'hidden', {{ get: () => {away}, configurable: true }})"
        )
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_timeout(stays)
    page.wait_for_selector("main[data-state=unreachable]", state="attached")


def practices(page: Page) -> None:
    """Close the examples and wait for the practice pair."""
    page.wait_for_selector("#examples[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("main[data-state=practice]", state="attached")
    page.wait_for_timeout(700)


def hears(page: Page) -> None:
    """Answer a practice pair and wait for the feedback."""
    practices(page)
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("main[data-state=feedback]", state="attached")


def teach(experiment: Any) -> None:
    """Turn one comparison into an example with its answer and another into a practice pair."""
    from human_feedback_site.feedback.services.moderation import NewExample, use_as_example  # noqa: PLC0415

    chosen = experiment.comparisons.filter(status="open", gold=None).order_by("-step")[:2]
    for comparison, practice in zip(chosen, (False, True), strict=True):
        is_first = comparison.first_return > comparison.second_return
        example = NewExample("first" if is_first else "second", "It gets further in the same time.", practice)
        use_as_example(experiment, comparison.uuid, example)


def shut_out(page: Page, user: Any) -> None:
    """Remove a labeler from the experiment while the page is open, then add them again."""
    page.wait_for_selector("main[data-state]:not([data-state=loading])", state="attached")
    experiment = user.labeler.experiments.get()
    user.labeler.experiments.clear()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("main[data-state=gone]", state="attached")
    user.labeler.experiments.add(experiment)


def make_end_sheets(album: Album) -> None:
    """Make sheets of what labelers see when they are done, stopped, or the experiment is finished."""
    from human_feedback_site.feedback.models import Arrival, Experiment, Participation  # noqa: PLC0415

    at = album.path
    came = Arrival.objects.filter(invite__note=STUDY).order_by("pk")
    done, going_on, stopped = (
        came.filter(labeler__participations__in=Participation.objects.filter(**which)).earliest("pk").labeler
        for which in ({"answers": 60}, {"answers": 3}, {"answers": 12})
    )
    album.sheet("done", f"{at}/done", done.user)
    album.sheet("done-not-yet", f"{at}/done", going_on.user)
    album.sheet("done-screened-out", f"{at}/done", stopped.user)
    album.sheet("label-stopped", f"{at}/label", stopped.user, sees("main[data-state=stopped]"))
    # The empty experiment, because finishing the full one would end the run.
    Experiment.objects.filter(name=NOTHING).update(state="finished", consent=None)
    zoe = album.labeler("zoe", Experiment.objects.get(name=NOTHING))
    album.sheet("label-finished", f"{album.nothing}/label", zoe, sees("main[data-state=finished]"))

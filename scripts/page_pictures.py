"""Take screenshots of every page of the site: wide and narrow, light and dark, empty and full.

    python -m scripts.page_pictures

Starts the run and labelers of ``site_pictures.py`` and saves a sheet per page with its four looks side by
side. The content is real: one experiment with labels, and one without. States of the labeling page such as
paused, finished or failed attention checks are set up for their screenshots.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from PIL import Image
from playwright.sync_api import Page

from scripts.site_pictures import (
    CONSENT,
    COURSE,
    PICTURES,
    POSTER,
    PROMPT,
    SHOWN,
    STUDY,
    World,
    label,
    link_of,
    make_invites,
    run,
    until_answered,
)

SHEETS = PICTURES / "pages"
LOOKS = [((1280, 800), False), ((1280, 800), True), ((360, 740), False), ((360, 740), True)]
HEIGHT, GAP, QUALITY = 600, 16, 80  # sheet height and gap in pixels, and WebP quality
ANSWERED = 60  # answered comparisons needed for the full pages
NOTHING = "walk"  # name of the empty experiment
JUDGING = "main[data-state=judging]"

Act = Callable[[Page], object]


class Album:
    """Makes the sheets for a running site.

    Attributes:
        world: the running site.
        admin: the site's administrator.
        newcomer: staff user without experiments.
        path: URL path of the full experiment.
        nothing: URL path of the empty experiment.
    """

    def __init__(self, world: World) -> None:
        from django.contrib.auth.models import User  # noqa: PLC0415 (models need django.setup())

        self.world = world
        self.admin = User.objects.get(username="admin")
        self.newcomer = User.objects.create(username="bo", is_staff=True)
        self.path = f"/experiments/{world.experiment.name}"
        self.nothing = f"/experiments/{NOTHING}"

    def sheet(self, name: str, path: str, user: Any = None, act: Act | None = None) -> None:
        """Save a sheet of a page in each look; ``act`` first brings the page into the desired state."""
        looks = []
        for size, dark in LOOKS:
            with self.world.page(path, size, dark=dark, user=user) as page:
                if act is not None:
                    act(page)
                page.evaluate("document.fonts.ready")
                shown = f"Promise.all([...document.querySelectorAll('video[src]')].map({SHOWN}))"
                page.evaluate(f"Promise.race([{shown}, new Promise((late) => setTimeout(late, 10_000))])")
                page.wait_for_timeout(300)
                looks.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        save(name, looks)

    def labeler(self, name: str, experiment: Any = None) -> Any:
        """Invite a labeler and return their user."""
        from human_feedback_site.feedback.services import accounts  # noqa: PLC0415

        experiment = experiment or self.world.experiment
        labeler = accounts.invite(experiment, name)
        accounts.participation_of(labeler, experiment)
        return labeler.user

    @contextmanager
    def state(self, state: str) -> Iterator[None]:
        """Put the full experiment into a state for the ``with`` block."""
        from human_feedback_site.feedback.models import Experiment  # noqa: PLC0415

        found = Experiment.objects.filter(pk=self.world.experiment.pk)
        found.update(state=state)
        yield
        found.update(state="running")


def save(name: str, looks: list[Image.Image]) -> None:
    """Save the screenshots side by side, scaled to the height of the sheet."""
    scaled = [
        look.resize((round(look.width * HEIGHT / look.height), HEIGHT), Image.Resampling.LANCZOS)
        for look in looks
    ]
    width = sum(look.width for look in scaled) + GAP * (len(scaled) - 1)
    sheet = Image.new("RGB", (width, HEIGHT), "#8a8f98")
    left = 0
    for look in scaled:
        sheet.paste(look, (left, 0))
        left += look.width + GAP
    SHEETS.mkdir(parents=True, exist_ok=True)
    sheet.save(SHEETS / f"{name}.webp", quality=QUALITY, method=6)


def sees(selector: str, *, ms: int = 0) -> Act:
    """Return an action that waits until an element is visible, and ``ms`` milliseconds longer."""

    def act(page: Page) -> None:
        page.wait_for_selector(selector)
        page.wait_for_timeout(ms)

    return act


def presses(*keys: str, before: str = JUDGING, after: str = JUDGING) -> Act:
    """Return an action that waits until a pair can be answered and presses keys.

    Args:
        before: selector to wait for before the keys.
        after: selector to wait for after the keys.
    """

    def act(page: Page) -> None:
        page.wait_for_selector(before, state="attached")
        page.wait_for_timeout(700)
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_selector(after, state="attached")
        page.wait_for_timeout(300)

    return act


def shows(element: str) -> Act:
    """Return an action that shows a hidden element, such as the suggestion to take a break."""

    def act(page: Page) -> None:
        page.wait_for_selector("main[data-state]", state="attached")
        page.wait_for_timeout(1200)
        page.evaluate(f"document.getElementById({element!r}).hidden = false")

    return act


def clicks(name: str, *, role: Any = "button") -> Act:
    """Return an action that clicks a button or link."""
    return lambda page: page.get_by_role(role, name=name).first.click()


def opens(page: Page) -> None:
    """Expand the forms for new invitations."""
    page.evaluate("for (const each of document.querySelectorAll('.makers details')) each.open = true")


def loses_the_connection(page: Page) -> None:
    """Block the API and answer twice."""
    page.wait_for_selector(JUDGING, state="attached")
    page.route("**/api/**", lambda route: route.abort())
    for _ in range(2):
        page.wait_for_selector(JUDGING, state="attached")
        page.wait_for_timeout(700)
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#away:not([hidden])")


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


def looks_at_unsaved(page: Page) -> None:
    """Lose the connection and open the list of unsaved answers."""
    loses_the_connection(page)
    page.locator("#unsaved").click()


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


def make_empty_sheets(album: Album) -> None:
    """Make sheets of pages without content."""
    from human_feedback_site.feedback.services import experiments  # noqa: PLC0415

    album.sheet("home-researcher-empty", "/", album.newcomer)
    values = {"env_id": "ShortWalker-v1", "prompt": PROMPT, "n_labels": 100, "fps": 20}
    idle, _ = experiments.put_experiment(album.admin, NOTHING, uuid4(), {**values, "has_true_reward": True})
    mia = album.labeler("mia-k", idle)
    at = album.nothing
    for name, path in (
        ("experiment-empty", "/"),
        ("comparisons-empty", "/comparisons"),
        ("invites-empty", "/invites"),
        ("participants-empty", "/participants"),
    ):
        album.sheet(name, at + path, album.admin)
    album.sheet("comparisons-none-found", f"{at}/comparisons?state=cancelled", album.admin)
    album.sheet("label-empty", f"{at}/label", mia, sees("main[data-state=empty]"))
    album.sheet("label-finish", f"{at}/label", mia, shows("finish"))
    album.sheet("history-empty", f"{at}/history", mia)
    album.sheet("done-going-on", f"{at}/done", mia)
    mia.labeler.experiments.clear()
    album.sheet("home-labeler-empty", "/", mia)
    album.sheet("admin-list-empty", "/admin/feedback/comparison/?status__exact=gold&q=walk", album.admin)


def make_researcher_sheets(album: Album) -> None:
    """Make sheets of the researcher's pages with content."""
    at, admin, experiment = album.path, album.admin, album.world.experiment
    told = experiment.comparisons.filter(status="answered").latest("n_labels", "step")
    unseen = experiment.comparisons.filter(leases=None, labels=None).first() or told
    sam = experiment.participations.get(labeler__name="sam")
    album.sheet("home-researcher", "/", admin)
    album.sheet("experiment", f"{at}/", admin, sees("#films li"))
    album.sheet("finish", f"{at}/finish", admin)
    with album.state("paused"):
        album.sheet("experiment-paused", f"{at}/", admin, sees("#paused"))
    album.sheet("comparisons", f"{at}/comparisons?order=labels", admin)
    album.sheet("comparison_detail", f"{at}/comparisons/{told.uuid}", admin)
    album.sheet("comparison_detail-unseen", f"{at}/comparisons/{unseen.uuid}", admin)
    album.sheet("labeler", f"{at}/labelers/{sam.labeler_id}", admin)
    stop(sam)
    album.sheet("labeler-stopped", f"{at}/labelers/{sam.labeler_id}", admin)
    make_invites(experiment)
    album.sheet("invites", f"{at}/invites", admin)
    album.sheet("invites-new", f"{at}/invites", admin, opens)
    album.sheet("invited", f"{at}/", admin, invites_by_name)
    album.sheet("participants", f"{at}/participants", admin)


def invites_by_name(page: Page) -> None:
    """Create an invitation link for one labeler."""
    page.evaluate("document.querySelector('details.invite').open = true")
    page.get_by_label("Labeler name").fill("yui")
    page.get_by_role("button", name="Create link").click()
    page.wait_for_selector("#link")


def stop(participation: Any) -> None:
    """Stop a participant, as failed attention checks do."""
    from human_feedback_site.feedback.models import Participation  # noqa: PLC0415
    from human_feedback_site.feedback.services import moderation  # noqa: PLC0415

    moderation.stop(Participation.objects.filter(pk=participation.pk))


def make_admin_sheets(album: Album) -> None:
    """Make sheets of Django's admin and the API reference."""
    from human_feedback_site.feedback.models import Comparison, Experiment  # noqa: PLC0415

    admin = album.admin
    told = Comparison.objects.filter(status="answered").latest("n_labels", "step")
    album.sheet("admin-sign-in", "/admin/")
    album.sheet("admin", "/admin/", admin)
    for model in ("experiment", "comparison", "label", "participation", "invite"):
        album.sheet(f"admin-{model}-list", f"/admin/feedback/{model}/", admin)
    album.sheet("admin-log", "/admin/admin/logentry/", admin)
    experiment = Experiment.objects.get(pk=album.world.experiment.pk)
    album.sheet("admin-experiment", f"/admin/feedback/experiment/{experiment.pk}/change/", admin)
    album.sheet("admin-comparison", f"/admin/feedback/comparison/{told.pk}/change/", admin)
    nothing = Experiment.objects.get(name=NOTHING)
    album.sheet("delete_confirmation", f"/admin/feedback/experiment/{nothing.pk}/delete/", admin)
    album.sheet("created", "/admin/feedback/apitoken/add/", admin, makes_a_token)
    album.sheet("api_docs", "/api/docs/", admin, sees(".opblock"))


def makes_a_token(page: Page) -> None:
    """Create an API token for the admin user; it is deleted with the temporary folder."""
    page.locator("#id_user").select_option(label="admin")
    page.locator("[name=_save]").click()
    page.wait_for_selector("#token")


def make_invitation_sheets(album: Album) -> None:
    """Make sheets of invitation, consent, sign-in and error pages."""
    from human_feedback_site.feedback.models import Experiment, Labeler  # noqa: PLC0415
    from human_feedback_site.feedback.services import accounts, consent  # noqa: PLC0415

    world = album.world
    noor = Labeler.objects.get(name="noor").user
    album.sheet("start", link_of(world, COURSE))
    album.sheet("message-used-up", link_of(world, POSTER))
    album.sheet("join", accounts.invite_url(world.experiment, "chen", world.url), noor)
    nothing = Experiment.objects.get(name=NOTHING)
    consent.set_text(nothing, CONSENT)
    yui = album.labeler("yui-h", nothing)
    album.sheet("consent", f"{album.nothing}/consent", yui)
    album.sheet("goodbye", f"{album.nothing}/consent", yui, clicks("I do not agree"))
    album.sheet("login", "/accounts/login/")
    album.sheet("login-refused", "/accounts/login/", None, fails_to_sign_in)
    album.sheet("404", "/nothing-here", noor)
    album.sheet("405", f"{album.path}/pause", noor)
    for template, status in (("403", 403), ("403_csrf", 403), ("500", 500)):
        album.sheet(template, "/accounts/login/", None, fails(album, template, status))


def fails(album: Album, template: str, status: int) -> Act:
    """Return an action that opens an error page rendered from a template."""
    from django.template.loader import render_to_string  # noqa: PLC0415

    body = render_to_string(f"{template}.html", {"request_id": "7c9e6679f3b84b6f"})

    def act(page: Page) -> None:
        page.route(
            "**/fails", lambda route: route.fulfill(status=status, body=body, content_type="text/html")
        )
        page.goto(f"{album.world.url}/fails")

    return act


def fails_to_sign_in(page: Page) -> None:
    """Sign in with a wrong password."""
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".error, .errorlist, .notice")


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
    teach(experiment)
    new = album.labeler("new")
    album.sheet("label-examples", at, new, sees("#examples[open] video"))
    album.sheet("label-practice", at, new, practices)
    album.sheet("label-practice-feedback", at, new, hears)


def episode(page: Page) -> None:
    """Open the newest episode video on the labeling page."""
    page.wait_for_selector(".tools [data-action=episode]:not([hidden])")
    presses("e")(page)
    page.wait_for_selector("#episode:not([hidden])")
    page.wait_for_timeout(1200)


def teach(experiment: Any) -> None:
    """Turn one comparison into an example with its answer and another into a practice pair."""
    from human_feedback_site.feedback.services.examples import NewExample, use_as_example  # noqa: PLC0415

    chosen = experiment.comparisons.filter(status="open", gold=None).order_by("-step")[:2]
    for comparison, practice in zip(chosen, (False, True), strict=True):
        is_first = comparison.first_return > comparison.second_return
        example = NewExample("first" if is_first else "second", "It gets further in the same time.", practice)
        use_as_example(experiment, comparison.uuid, example)


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


def shut_out(page: Page, user: Any) -> None:
    """Remove a labeler from the experiment while the page is open, then add them again."""
    page.wait_for_selector("main[data-state]:not([data-state=loading])", state="attached")
    experiment = user.labeler.experiments.get()
    user.labeler.experiments.clear()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("main[data-state=gone]", state="attached")
    user.labeler.experiments.add(experiment)


def main() -> None:
    """Start the run, have it labeled, and make all sheets."""
    with run() as world:
        album = Album(world)
        make_empty_sheets(album)
        resting = label(world)
        until_answered(world, ANSWERED)
        resting.set()
        for part in (
            make_researcher_sheets,
            make_admin_sheets,
            make_invitation_sheets,
            make_labeler_sheets,
            make_end_sheets,
        ):
            part(album)
    print(f"{len(list(Path(SHEETS).glob('*.webp')))} sheets in {SHEETS}")


if __name__ == "__main__":
    main()

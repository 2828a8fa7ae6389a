"""Make a sheet of every page of the site: wide and narrow, light and dark, with nothing on it and full.

    python -m scripts.page_pictures

It starts the run of ``site_pictures.py``, has the same labelers label, and photographs each page in four
looks side by side. What stands on the pages is as the program makes it; a second experiment has nothing in
it, and what a state of the labeling page needs (a pause, an end, failed checks) is brought about.
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
HEIGHT, GAP, QUALITY = 600, 16, 80  # of a sheet, in pixels, and WebP's
ANSWERED = 60  # comparisons, when the full pages are made
NOTHING = "walk"  # the experiment without anything
JUDGING = "main[data-state=judging]"

Act = Callable[[Page], object]


class Album:
    """Makes the sheets of a world."""

    def __init__(self, world: World) -> None:
        from django.contrib.auth.models import User  # noqa: PLC0415 (models, once Django is set up)

        self.world = world
        self.admin = User.objects.get(username="admin")
        self.newcomer = User.objects.create(username="bo", is_staff=True)
        self.path = f"/experiments/{world.experiment.name}"
        self.nothing = f"/experiments/{NOTHING}"

    def sheet(self, name: str, path: str, user: Any = None, act: Act | None = None) -> None:
        """Photograph a page in each look; ``act`` brings it into the state that is meant."""
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
        """Invite somebody; return the account."""
        from human_feedback_site.feedback.services import accounts  # noqa: PLC0415

        experiment = experiment or self.world.experiment
        labeler = accounts.invite(experiment, name)
        accounts.participation_of(labeler, experiment)
        return labeler.user

    @contextmanager
    def state(self, state: str) -> Iterator[None]:
        """The experiment in another state for a while."""
        from human_feedback_site.feedback.models import Experiment  # noqa: PLC0415

        found = Experiment.objects.filter(pk=self.world.experiment.pk)
        found.update(state=state)
        yield
        found.update(state="running")


def save(name: str, looks: list[Image.Image]) -> None:
    """Put the looks side by side, all as high as the sheet."""
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
    """Wait until something is there, and a while longer."""

    def act(page: Page) -> None:
        page.wait_for_selector(selector)
        page.wait_for_timeout(ms)

    return act


def presses(*keys: str, before: str = JUDGING, after: str = JUDGING) -> Act:
    """Press keys when a pair was looked at for long enough to be judged."""

    def act(page: Page) -> None:
        page.wait_for_selector(before, state="attached")
        page.wait_for_timeout(700)
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_selector(after, state="attached")
        page.wait_for_timeout(300)

    return act


def shows(element: str) -> Act:
    """Show what comes after a while, such as the suggestion of a pause."""

    def act(page: Page) -> None:
        page.wait_for_selector("main[data-state]", state="attached")
        page.wait_for_timeout(1200)
        page.evaluate(f"document.getElementById({element!r}).hidden = false")

    return act


def clicks(name: str, *, role: Any = "button") -> Act:
    """Press a button, or follow a link."""
    return lambda page: page.get_by_role(role, name=name).first.click()


def opens(page: Page) -> None:
    """Open what is folded."""
    page.evaluate("for (const each of document.querySelectorAll('.makers details')) each.open = true")


def loses_the_connection(page: Page) -> None:
    """Answer twice without one."""
    page.wait_for_selector(JUDGING, state="attached")
    page.route("**/api/**", lambda route: route.abort())
    for _ in range(2):
        page.wait_for_selector(JUDGING, state="attached")
        page.wait_for_timeout(700)
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#away:not([hidden])")


def comes_back_to_nothing(page: Page) -> None:
    """Leave the tab for a while, in which the site goes."""
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
    """Open the list of what is unsaved."""
    loses_the_connection(page)
    page.locator("#unsaved").click()


def practices(page: Page) -> None:
    """Close the examples."""
    page.wait_for_selector("#examples[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("main[data-state=practice]", state="attached")
    page.wait_for_timeout(700)


def hears(page: Page) -> None:
    """Answer a practice pair."""
    practices(page)
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("main[data-state=feedback]", state="attached")


def of_nothing(album: Album) -> None:
    """Pages with nothing on them."""
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


def of_the_researcher(album: Album) -> None:
    """The researcher's full pages."""
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
    """Make a link for one person."""
    page.evaluate("document.querySelector('details.invite').open = true")
    page.get_by_label("Labeler name").fill("yui")
    page.get_by_role("button", name="Create link").click()
    page.wait_for_selector("#link")


def stop(participation: Any) -> None:
    """As gold pairs do."""
    from human_feedback_site.feedback.models import Participation  # noqa: PLC0415
    from human_feedback_site.feedback.services import moderation  # noqa: PLC0415

    moderation.stop(Participation.objects.filter(pk=participation.pk))


def of_the_admin(album: Album) -> None:
    """Django's admin, and the reference of the API."""
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
    """Make one for the admin; it is gone with the folder."""
    page.locator("#id_user").select_option(label="admin")
    page.locator("[name=_save]").click()
    page.wait_for_selector("#token")


def of_links(album: Album) -> None:
    """From the link to the consent, signing in, and what is said where something is not there."""
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
    """A page that comes where nothing else can be shown."""
    from django.template.loader import render_to_string  # noqa: PLC0415

    body = render_to_string(f"{template}.html", {"request_id": "7c9e6679f3b84b6f"})

    def act(page: Page) -> None:
        page.route(
            "**/fails", lambda route: route.fulfill(status=status, body=body, content_type="text/html")
        )
        page.goto(f"{album.world.url}/fails")

    return act


def fails_to_sign_in(page: Page) -> None:
    """Try a wrong password."""
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".error, .errorlist, .notice")


def of_labelers(album: Album) -> None:
    """The labeling page in each of its states, and a labeler's other pages."""
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
    """Watch the newest film beside the pairs."""
    page.wait_for_selector(".tools [data-action=episode]:not([hidden])")
    presses("e")(page)
    page.wait_for_selector("#episode:not([hidden])")
    page.wait_for_timeout(1200)


def teach(experiment: Any) -> None:
    """Show one pair with its answer, and have another practiced."""
    from human_feedback_site.feedback.services.examples import NewExample, use_as_example  # noqa: PLC0415

    chosen = experiment.comparisons.filter(status="open", gold=None).order_by("-step")[:2]
    for comparison, practice in zip(chosen, (False, True), strict=True):
        is_first = comparison.first_return > comparison.second_return
        example = NewExample("first" if is_first else "second", "It gets further in the same time.", practice)
        use_as_example(experiment, comparison.uuid, example)


def of_ends(album: Album) -> None:
    """How it ends for a labeler."""
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
    # The other one, for the run would end with its own.
    Experiment.objects.filter(name=NOTHING).update(state="finished", consent=None)
    zoe = album.labeler("zoe", Experiment.objects.get(name=NOTHING))
    album.sheet("label-finished", f"{album.nothing}/label", zoe, sees("main[data-state=finished]"))


def shut_out(page: Page, user: Any) -> None:
    """Take somebody out of the experiment while the page is open."""
    page.wait_for_selector("main[data-state]:not([data-state=loading])", state="attached")
    experiment = user.labeler.experiments.get()
    user.labeler.experiments.clear()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("main[data-state=gone]", state="attached")
    user.labeler.experiments.add(experiment)


def main() -> None:
    """Run, label, and photograph."""
    with run() as world:
        album = Album(world)
        of_nothing(album)
        resting = label(world)
        until_answered(world, ANSWERED)
        resting.set()
        for part in (of_the_researcher, of_the_admin, of_links, of_labelers, of_ends):
            part(album)
    print(f"{len(list(Path(SHEETS).glob('*.webp')))} sheets in {SHEETS}")


if __name__ == "__main__":
    main()

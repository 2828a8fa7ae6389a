"""Sheets of invitation, consent, sign-in and error pages."""

from urllib.parse import urlsplit

from playwright.sync_api import Page

from scripts.sheets.acts import clicks
from scripts.sheets.album import NOTHING, Act, Album
from scripts.site_pictures import COURSE, POSTER, link_of

CONSENT = """You are asked to compare short clips of a simulated robot. It takes about twenty minutes.

We keep what you answer and how long you took, under a pseudonym. Your number on the platform is kept apart \
from your answers, and deleted when everybody is paid.

You may stop at any time. Questions: ada@lab.example"""


def make_invitation_sheets(album: Album) -> None:
    """Make sheets of invitation, consent, sign-in and error pages."""
    from human_feedback_site.feedback.models import Experiment, Labeler  # noqa: PLC0415
    from human_feedback_site.feedback.services import accounts, wording  # noqa: PLC0415

    world = album.world
    noor = Labeler.objects.get(name="noor").user
    album.sheet("start", link_of(world, COURSE))
    album.sheet("message-used-up", link_of(world, POSTER))
    album.sheet("join", accounts.invite_url(world.experiment, "chen", world.url), noor)
    nothing = Experiment.objects.get(name=NOTHING)
    wording.set_text(nothing, CONSENT)
    yui = album.labeler("yui-h", nothing)
    album.sheet("consent", f"{album.nothing}/consent", yui)
    album.sheet("goodbye", f"{album.nothing}/consent", yui, clicks("I do not agree"))
    album.sheet("login", "/accounts/login/")
    album.sheet("login-single-sign-on", "/accounts/login/", None, offers_single_sign_on(album))
    album.sheet("login-refused", "/accounts/login/", None, fails_to_sign_in)
    album.sheet("404", "/nothing-here", noor)
    album.sheet("405", f"{album.path}/pause", noor)
    for template, status in (("403", 403), ("403_csrf", 403), ("500", 500)):
        album.sheet(template, "/accounts/login/", None, fails(album, template, status))


def offers_single_sign_on(album: Album) -> Act:
    """Return an action that shows the sign-in page of a site with an identity provider.

    The run's site has none, so this process renders the page (see :class:`~scripts.site_pictures.World`).
    """
    from django.test import Client  # noqa: PLC0415

    host = urlsplit(album.world.url).netloc
    body = Client().get("/accounts/login/", headers={"host": host}).content

    def act(page: Page) -> None:
        page.route("**/accounts/login/", lambda route: route.fulfill(body=body, content_type="text/html"))
        page.reload()

    return act


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

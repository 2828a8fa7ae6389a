"""Sheets of the researcher's pages."""

from typing import Any

from playwright.sync_api import Page

from scripts.sheets.acts import sees
from scripts.sheets.album import Album
from scripts.site_pictures import make_invites


def make_researcher_sheets(album: Album) -> None:
    """Make sheets of the researcher's pages with content."""
    at, admin, experiment = album.path, album.admin, album.world.experiment
    told = experiment.comparisons.filter(status="answered").latest("n_labels", "step")
    unseen = experiment.comparisons.filter(leases=None, labels=None).first() or told
    sam = experiment.participations.get(labeler__name="sam")
    album.sheet("home-researcher", "/", admin)
    album.sheet("experiment", f"{at}/", admin, sees("#films li"))
    album.sheet("finish", f"{at}/finish", admin)
    album.sheet("settings", f"{at}/settings", admin)
    with album.state("paused"):
        album.sheet("experiment-paused", f"{at}/", admin, sees("#paused"))
    album.sheet("comparisons", f"{at}/comparisons?order=labels", admin)
    album.sheet("review", f"{at}/review?text={told.uuid}", admin, chosen)
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


def opens(page: Page) -> None:
    """Expand the forms for new invitations."""
    page.evaluate("for (const each of document.querySelectorAll('.makers details')) each.open = true")


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


def chosen(page: Page) -> None:
    """Choose a clip once both play."""
    page.wait_for_selector(".frame video:not([controls])")
    page.wait_for_timeout(500)
    page.keyboard.press("ArrowLeft")

"""Sheets of the Django admin and the API reference."""

from playwright.sync_api import Page

from scripts.sheets.acts import sees
from scripts.sheets.album import NOTHING, Album


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
    change = f"/admin/feedback/experiment/{experiment.pk}/change/"
    album.sheet("admin-experiment", change, admin)
    album.sheet("admin-experiment-settings", change, admin, scrolls_to_the_settings)
    album.sheet("admin-comparison", f"/admin/feedback/comparison/{told.pk}/change/", admin)
    nothing = Experiment.objects.get(name=NOTHING)
    album.sheet("delete_confirmation", f"/admin/feedback/experiment/{nothing.pk}/delete/", admin)
    album.sheet("created", "/admin/feedback/apitoken/add/", admin, makes_a_token)
    make_webhook_sheets(album)
    album.sheet("api_docs", "/api/docs/", admin, sees(".opblock"))


def scrolls_to_the_settings(page: Page) -> None:
    """Show the middle of an experiment's form."""
    page.locator("#id_show_episodes").evaluate("(box) => box.scrollIntoView({ block: 'center' })")


def make_webhook_sheets(album: Album) -> None:
    """Make sheets of the admin's pages for webhooks."""
    from human_feedback_site.feedback.models import WebhookEndpoint  # noqa: PLC0415
    from human_feedback_site.feedback.services import webhooks  # noqa: PLC0415

    path = "/admin/feedback/webhookendpoint/"
    chat = WebhookEndpoint(name="Lab chat", url="https://chat.lab.example/3f9a", experiment_finished=False)
    webhooks.create_endpoint(chat)
    album.sheet("admin-webhook-list", path, album.admin)
    album.sheet("admin-webhook", f"{path}{chat.pk}/change/", album.admin)
    album.sheet("created-webhook", path, album.admin, replaces_the_secret)
    chat.delete()


def replaces_the_secret(page: Page) -> None:
    """Replace the secret of the only webhook, which is deleted after the screenshots."""
    page.locator("[name=_selected_action]").check()
    page.get_by_label("Action:").select_option("replace_secret")
    page.get_by_role("button", name="Go").click()
    page.wait_for_selector("#secret")


def makes_a_token(page: Page) -> None:
    """Create an API token for the admin user; it is deleted with the temporary folder."""
    page.locator("#id_user").select_option(label="admin")
    page.locator("[name=_save]").click()
    page.wait_for_selector("#token")

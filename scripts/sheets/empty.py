"""Sheets of pages without content."""

from uuid import uuid4

from scripts.sheets.acts import sees, shows
from scripts.sheets.album import NOTHING, Album
from scripts.site_pictures import PROMPT


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

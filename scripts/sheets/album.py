"""The album of sheets: screenshots of a page in four looks, side by side, saved as WebP."""

import io
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image
from playwright.sync_api import Page

from scripts.site_pictures import PICTURES, SHOWN, World

SHEETS = PICTURES / "pages"
WIDE, PHONE = (1280, 800), (360, 740)
LOOKS = [(WIDE, False), (WIDE, True), (PHONE, False), (PHONE, True)]
HEIGHT, GAP, QUALITY = 600, 16, 80  # sheet height and gap in pixels, and WebP quality
NOTHING = "walk"  # name of the empty experiment

Act = Callable[[Page], object]


class Album:
    """Makes the sheets for a running site.

    Attributes:
        world: the running site.
        admin: the site's administrator.
        newcomer: staff user without experiments.
        path: URL path of the full experiment.
        nothing: URL path of the empty experiment.
        names: names of the sheets to make; empty for all.
    """

    def __init__(self, world: World, names: Collection[str]) -> None:
        from django.contrib.auth.models import User  # noqa: PLC0415 (models need django.setup())

        self.world = world
        self.admin = User.objects.get(username="admin")
        self.newcomer = User.objects.create(username="bo", is_staff=True)
        self.path = f"/experiments/{world.experiment.name}"
        self.nothing = f"/experiments/{NOTHING}"
        self.names = names

    def sheet(self, name: str, path: str, user: Any = None, act: Act | None = None) -> None:
        """Save a sheet of a page in each look; ``act`` first brings the page into the desired state."""
        if self.names and name not in self.names:
            return
        looks = []
        for size, dark in LOOKS:
            with self.world.page(path, size, dark=dark, user=user) as page:
                if act is not None:
                    act(page)
                looks.append(Image.open(io.BytesIO(screenshot(page))).convert("RGB"))
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


def screenshot(page: Page) -> bytes:
    """Wait for a page's fonts and videos, and return a screenshot."""
    page.evaluate("document.fonts.ready")
    shown = f"Promise.all([...document.querySelectorAll('video[src]')].map({SHOWN}))"
    page.evaluate(f"Promise.race([{shown}, new Promise((late) => setTimeout(late, 10_000))])")
    page.wait_for_timeout(300)
    return page.screenshot()


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

"""Take screenshots of the site's pages for the documentation, from a run with scripted labelers.

    python scripts/site_pictures.py

Trains a cheetah for a few minutes with five labelers who make mistakes, and takes screenshots of the pages.
The content is real, except for the participants from a recruitment platform and the end of a labeler's
participation. Run ``page_pictures.py`` for the other screenshots.
"""

import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
PROMPT = "Choose the clip in which the cheetah runs forward faster."
TEACH = ["-p", "human", "-e", "ShortCheetah-v1", "-n", "forward", "-l", "240", "-L", "40", "--gold", "0.1"]
LABELERS = {"noor": 0.04, "oluwa": 0.08, "mia": 0.1, "chen": 0.15, "sam": 0.5}  # error rates
ANSWERED = 145  # answered comparisons needed for the screenshots
SHOWN = """(video) => video.readyState >= 2 || video.getBoundingClientRect().top > innerHeight
  || new Promise((shown) => video.addEventListener("loadeddata", shown, { once: true }))"""
WIDE, PHONE = (1280, 900), (360, 640)
STUDY, POSTER, COURSE = "First study", "Poster in the lab", "Course on robots"
# For the sign-in page that this process renders; the run's site has no identity provider.
SINGLE_SIGN_ON = {
    "OIDC_ISSUER": "https://login.lab.example",
    "OIDC_CLIENT_ID": "rl-teacher",
    "OIDC_CLIENT_SECRET": "unused",
    "OIDC_NAME": "Example Lab",
}


class World:
    """A run's folder, its site and a browser; this process also reads the site's database."""

    def __init__(self, folder: Path, chromium: Browser) -> None:
        self.folder = folder
        self._chromium = chromium
        site = json.loads((folder / "state/site/lock").read_text())
        self.url = str(site["url"])
        self._sign_in_code = site["sign_in_code"]
        os.environ["TEACHER_STATE_DIR"] = str(folder / "state")
        os.environ["DJANGO_SETTINGS_MODULE"] = "human_feedback_site.settings"
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # Playwright's event loop runs in this thread
        os.environ.update(SINGLE_SIGN_ON)
        import django  # noqa: PLC0415 (after the environment is set)

        django.setup()

    @property
    def experiment(self) -> Any:
        """The run's experiment, freshly read from the database."""
        from human_feedback_site.feedback.models import Experiment  # noqa: PLC0415

        return Experiment.objects.earliest("pk")

    @contextmanager
    def page(
        self,
        path: str,
        size: tuple[int, int] = WIDE,
        *,
        dark: bool = False,
        locale: str = "en-US",
        user: Any = None,
    ) -> Iterator[Page]:
        """Open a page in a new browser profile, signed in as ``user`` unless it is None."""
        width, height = size
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            locale=locale,
            has_touch=width < 500,  # hides keyboard shortcuts, as on a phone
            reduced_motion="reduce",
        )
        if user is not None:
            name, value = session_of(user)
            context.add_cookies([{"name": name, "value": value, "url": self.url}])
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(path if path.startswith("http") else self.url + path)
        yield page
        context.close()

    @contextmanager
    def researcher(self, path: str, size: tuple[int, int] = WIDE) -> Iterator[Page]:
        """Open a page signed in as the researcher."""
        with self.page(f"/j/{self._sign_in_code}", size) as page:
            page.goto(self.url + path)
            yield page


def session_of(user: Any) -> tuple[str, str]:
    """Sign in a user and return the name and value of the session cookie."""
    from django.conf import settings  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return name, client.cookies[name].value


def save(page: Page, name: str, *, height: int) -> None:
    """Save a screenshot of the top ``height`` pixels of a page as a compressed PNG."""
    page.set_viewport_size({"width": page.evaluate("innerWidth"), "height": height})
    page.wait_for_load_state("load")
    page.evaluate("Promise.all([...document.querySelectorAll('video')].map(shown))".replace("shown", SHOWN))
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    shrink(path)


def down_to(page: Page, selector: str) -> int:
    """Return the page height in pixels down to the end of an element, plus a margin."""
    end: int = page.evaluate(
        f"Math.ceil(document.querySelector('{selector}').getBoundingClientRect().bottom + scrollY + 24)"
    )
    return end


def shrink(path: Path) -> None:
    """Reduce a PNG to 256 colors, which is enough for these pages."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def save_side_by_side(name: str, pictures: Sequence[bytes]) -> None:
    """Save narrow screenshots side by side as one PNG."""
    parts = [Image.open(io.BytesIO(each)).convert("RGB") for each in pictures]
    gap = 20
    whole = Image.new(
        "RGB",
        (sum(part.width for part in parts) + gap * (len(parts) - 1), max(part.height for part in parts)),
        "white",
    )
    left = 0
    for part in parts:
        whole.paste(part, (left, 0))
        left += part.width + gap
    whole.save(PICTURES / f"{name}.png")
    shrink(PICTURES / f"{name}.png")


def capture_researcher_pages(world: World) -> None:
    """Take screenshots of the researcher's pages of an experiment with labels."""
    path = f"/experiments/{world.experiment.name}"
    with world.researcher(f"{path}/") as page:
        page.wait_for_selector("#films li:nth-child(2)")
        save(page, "experiment", height=down_to(page, "#labelers"))
    with world.researcher(f"{path}/comparisons?decision=first&order=labels") as page:
        save(page, "comparisons", height=900)


def make_invites(experiment: Any) -> None:
    """Create invitation links for several labelers, one with participants from a platform."""
    from django.db.models.functions import Now  # noqa: PLC0415
    from django.utils import timezone  # noqa: PLC0415

    from human_feedback_site.feedback.models import Invite, Participation  # noqa: PLC0415
    from human_feedback_site.feedback.services import invites  # noqa: PLC0415

    soon = timezone.now() + timedelta(days=14)
    facts = {"experiment": experiment, "kind": "anonymous", "expires_at": soon, "answers_wanted": 60}
    Invite.objects.create(**{**facts, "expires_at": timezone.now()}, note="Last week", uses=4)
    Invite.objects.create(**facts, note=POSTER, limit=10, uses=10)
    Invite.objects.create(**facts, note=COURSE, limit=25, completion_code="COURSE-7")
    study = Invite.objects.create(
        **facts, platform="prolific", limit=40, note=STUDY, completion_code="C1A7D0NE",
        screen_out_code="C1A7SCRN", return_url=invites.PROLIFIC_RETURN_URL,
    )  # fmt: skip
    for number, answers in enumerate((60, 60, 41, 12, 60, 3)):
        ids = (
            f"{random.Random(f'{number}/{name}').getrandbits(96):024x}" for name in ("pid", "study", "visit")
        )
        own = Participation.objects.filter(labeler=invites.admit(study, invites.PlatformParticipant(*ids)))
        own.update(answers=answers, stopped_at=Now() if answers == 12 else None)


def capture_invitation_pages(world: World) -> None:
    """Take screenshots of the researcher's pages of invitations and participants."""
    make_invites(world.experiment)
    for name, end in (("invites", ".people + p"), ("participants", ".forget-all")):
        with world.researcher(f"/experiments/{world.experiment.name}/{name}") as page:
            save(page, name, height=down_to(page, end))


def capture_end_pages(world: World) -> None:
    """Take screenshots of what stopped labelers see, and of the researcher's page about one."""
    from django.db.models.functions import Now  # noqa: PLC0415

    from human_feedback_site.feedback.models import Participation  # noqa: PLC0415

    path = f"/experiments/{world.experiment.name}"
    with world.page(link_of(world, POSTER), PHONE) as page:
        pictures = [page.screenshot()]
    with world.page(link_of(world, STUDY, "8"), PHONE, dark=True) as page:
        page.get_by_role("button", name="Start").click()
        page.wait_for_selector("main[data-state]", state="attached")
        newest = Participation.objects.filter(pk=Participation.objects.latest("pk").pk)
        newest.update(answers=14, stopped_at=Now())
        page.goto(f"{world.url}{path}/done")
        pictures.append(page.screenshot())
    sam = world.experiment.participations.get(labeler__name="sam").labeler_id
    with world.researcher(f"{path}/labelers/{sam}", PHONE) as page:
        pictures.append(page.screenshot())
    save_side_by_side("people-ends", pictures)


def link_of(world: World, note: str, digit: str = "") -> str:
    """Return the invitation URL with this note; a ``digit`` adds platform IDs made of that digit."""
    from human_feedback_site.feedback.models import Invite  # noqa: PLC0415
    from human_feedback_site.feedback.services import invites  # noqa: PLC0415

    link = invites.link_of(Invite.objects.get(note=note), world.url)
    return f"{link}?{urlencode(dict.fromkeys(invites.PROLIFIC_NAMES, 24 * digit))}" if digit else link


def label(world: World) -> threading.Event:
    """Start the labelers at a human pace; they pause while the returned event is set."""
    from human_feedback_site.feedback.models import Experiment  # noqa: PLC0415
    from human_feedback_site.feedback.services.experiments import set_overlap  # noqa: PLC0415
    from teacher.labeling.bots import Bot  # noqa: PLC0415
    from teacher.settings.teachers import ErrorModel  # noqa: PLC0415

    resting = threading.Event()

    class Unhurried(Bot):
        def _label(self) -> bool:
            while resting.is_set():
                time.sleep(0.5)
            return super()._label()

        def _choose(self, lease: Mapping[str, Any], offer: Mapping[str, Any]) -> Any:
            time.sleep(random.uniform(1.2, 3.5))
            return super()._choose(lease, offer)

    Experiment.objects.update(repeat_rate=0.1, warn_failures=2, stop_failures=6)
    set_overlap(world.experiment, 2, 3, 0.25)
    token = (world.folder / "state/token").read_text().strip()
    for name, mistakes in LABELERS.items():
        error_model = ErrorModel.parse(f"mistake:{mistakes}")
        Unhurried(world.url, world.experiment.name, token, name, None, error_model).start()
    return resting


@contextmanager
def run() -> Iterator[World]:
    """Start a run with its site and a browser, and stop them on exit."""
    if not subprocess.run(["fc-list", ":lang=zh"], stdout=subprocess.PIPE, check=True).stdout:
        raise SystemExit(
            "a Chinese font is needed, but none was found; to install: apt install fonts-wqy-zenhei"
        )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        said = Path(folder) / "said"
        with said.open("w") as output:
            command = [sys.executable, "-m", "teacher.teach", *TEACH, "-t", "400000", "--prompt", PROMPT]
            trainer = subprocess.Popen(command, cwd=folder, stdout=output)
        try:
            while not re.search("Label and watch here: ", said.read_text()):
                time.sleep(0.5)
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            yield World(Path(folder), chromium)
        finally:
            trainer.terminate()
            trainer.wait()


def until_answered(world: World, count: int) -> None:
    """Wait until ``count`` comparisons have all their labels."""
    while world.experiment.comparisons.filter(status="answered").count() < count:
        time.sleep(1.0)


def main() -> None:
    """Start the run, have it labeled, and take all screenshots."""
    with run() as world:
        label(world)
        until_answered(world, ANSWERED)
        capture_researcher_pages(world)
        capture_invitation_pages(world)
        capture_end_pages(world)


if __name__ == "__main__":
    main()

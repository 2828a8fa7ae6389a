"""Make the pictures of the labeling site's pages, from a run with scripted labelers.

    python scripts/site_pictures.py

It trains a cheetah for some minutes, has five labelers err as people do, and photographs the pages: wide and
narrow, light and dark, before anything was asked and later. Everything is as the program makes it, except who
comes from a platform, and when a labeler ended.
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
LABELERS = {"noor": 0.04, "oluwa": 0.08, "mia": 0.1, "chen": 0.15, "sam": 0.5}  # and how often they err
ANSWERED = 145  # comparisons, when the pictures are made
SHOWN = """(video) => video.readyState >= 2 || video.getBoundingClientRect().top > innerHeight
  || new Promise((shown) => video.addEventListener("loadeddata", shown, { once: true }))"""
WIDE, NARROW, PHONE = (1280, 900), (360, 760), (360, 640)
STUDY, POSTER, COURSE = "First study", "Poster in the lab", "Course on robots"
CONSENT = """You are asked to compare short clips of a simulated robot. It takes about twenty minutes.

We keep what you answer and how long you took, under a pseudonym. Your number on the platform is kept apart \
from your answers, and deleted when everybody is paid.

You may stop at any time. Questions: ada@lab.example"""


class World:
    """A folder with a run, its site, and a browser before it; the site's own code reads the same database."""

    def __init__(self, folder: Path, chromium: Browser) -> None:
        self.folder = folder
        self._chromium = chromium
        site = json.loads((folder / "state/site/lock").read_text())
        self.url = str(site["url"])
        os.environ["TEACHER_STATE_DIR"] = str(folder / "state")
        os.environ["DJANGO_SETTINGS_MODULE"] = "human_feedback_site.settings"
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the browser's driver has a loop; no view runs in it
        import django  # noqa: PLC0415 (after the environment is set)

        django.setup()

    @property
    def experiment(self) -> Any:
        """The run's experiment, read anew."""
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
        """A page in a fresh profile, in which ``user`` is signed in."""
        width, height = size
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            locale=locale,
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
    def researcher(self, path: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> Iterator[Page]:
        """A page as the researcher sees it."""
        password = (self.folder / "state/admin_password").read_text().strip()
        with self.page("/accounts/login/", size, dark=dark) as page:
            page.get_by_label("Name").fill("admin")
            page.get_by_label("Password").fill(password)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(self.url + "/")
            page.goto(self.url + path)
            yield page


def session_of(user: Any) -> tuple[str, str]:
    """Name and value of the cookie of somebody who has signed in."""
    from django.conf import settings  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return name, client.cookies[name].value


def save(page: Page, name: str, *, height: int) -> None:
    """Photograph so much of a page, and keep it small."""
    page.set_viewport_size({"width": page.evaluate("innerWidth"), "height": height})
    page.wait_for_load_state("load")
    page.evaluate("Promise.all([...document.querySelectorAll('video')].map(shown))".replace("shown", SHOWN))
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    shrink(path)


def down_to(page: Page, selector: str) -> int:
    """How far a page goes down to the end of one of its parts."""
    end: int = page.evaluate(
        f"Math.ceil(document.querySelector('{selector}').getBoundingClientRect().bottom + scrollY + 24)"
    )
    return end


def shrink(path: Path) -> None:
    """Keep 256 colors, which is all that such a page needs."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def beside(name: str, pictures: Sequence[bytes]) -> None:
    """Put narrow pictures beside each other."""
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


def before_anything(world: World) -> None:
    """Pages of an experiment that nobody has labeled."""
    path = f"/experiments/{world.experiment.name}"
    with world.researcher(f"{path}/") as page:
        save(page, "experiment-empty", height=900)
    with world.researcher(f"{path}/comparisons?state=cancelled") as page:
        save(page, "comparisons-empty", height=620)
    with world.researcher(f"{path}/invites") as page:
        save(page, "invites-empty", height=620)


def of_researchers(world: World) -> None:
    """Pages of an experiment in full swing."""
    path = f"/experiments/{world.experiment.name}"
    looks = {"": (WIDE, False), "-dark": (WIDE, True), "-narrow": (NARROW, False)}
    for suffix, (size, dark) in looks.items():
        with world.researcher(f"{path}/", size, dark=dark) as page:
            page.wait_for_selector("#films li:nth-child(2)")
            save(page, f"experiment{suffix}", height=down_to(page, "#labelers"))
        with world.researcher(f"{path}/comparisons?decision=first&order=labels", size, dark=dark) as page:
            save(page, f"comparisons{suffix}", height=900 if size is WIDE else 1200)
    told = world.experiment.comparisons.filter(status="answered").latest("n_labels", "step")
    with world.researcher(f"{path}/comparisons/{told.uuid}") as page:
        save(page, "comparison", height=down_to(page, ".history"))
    with world.researcher("/") as page:
        save(page, "home", height=380)


def make_invites(experiment: Any) -> None:
    """Links for many, one of which brought people from a platform."""
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


def of_invitations(world: World) -> None:
    """Links and participants, as the researcher sees them."""
    make_invites(world.experiment)
    path = f"/experiments/{world.experiment.name}"
    for suffix, size, dark in (("", WIDE, False), ("-narrow", NARROW, True)):
        for name, end in (("invites", ".people + p"), ("participants", ".forget-all")):
            with world.researcher(f"{path}/{name}", size, dark=dark) as page:
                save(page, f"{name}{suffix}", height=down_to(page, end))


def of_labelers(world: World) -> None:
    """From the link to the end, on a phone."""
    from human_feedback_site.feedback.models import Participation  # noqa: PLC0415
    from human_feedback_site.feedback.services import consent  # noqa: PLC0415

    consent.set_text(world.experiment, CONSENT)
    done = f"{world.url}/experiments/{world.experiment.name}/done"
    with world.page(link_of(world, COURSE), PHONE, dark=True, locale="zh-CN") as page:
        pictures = [page.screenshot()]
        page.get_by_role("button", name="开始").click()
        page.wait_for_selector(".consent")
        pictures.append(page.screenshot())
        page.get_by_role("button", name="我同意").click()
        page.wait_for_selector("main[data-state]", state="attached")
        Participation.objects.filter(pk=Participation.objects.latest("pk").pk).update(answers=60)
        page.goto(done)
        pictures.append(page.screenshot())
    consent.set_text(world.experiment, "")
    beside("people-narrow", pictures)


def of_ends(world: World) -> None:
    """What those see who may not go on, and how a researcher sees to it."""
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
    beside("people-ends", pictures)


def link_of(world: World, note: str, digit: str = "") -> str:
    """A link, as a platform gives it to one of its people whose numbers consist of one digit."""
    from human_feedback_site.feedback.models import Invite  # noqa: PLC0415
    from human_feedback_site.feedback.services import invites  # noqa: PLC0415

    link = invites.link_of(Invite.objects.get(note=note), world.url)
    return f"{link}?{urlencode(dict.fromkeys(invites.PROLIFIC_NAMES, 24 * digit))}" if digit else link


def label(world: World) -> threading.Event:
    """Set the labelers to work, no faster than people; they rest for as long as the event is set."""
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

        def _answer(self, lease: Mapping[str, Any], truth: Mapping[str, Any], received: float) -> None:
            time.sleep(random.uniform(1.2, 3.5))
            super()._answer(lease, truth, received)

    Experiment.objects.update(repeat_rate=0.1, warn_failures=2, stop_failures=6)
    set_overlap(world.experiment, 2, 3, 0.25)
    token = (world.folder / "state/token").read_text().strip()
    for name, mistakes in LABELERS.items():
        error_model = ErrorModel.parse(f"mistake:{mistakes}")
        Unhurried(world.url, world.experiment.name, token, name, None, error_model).start()
    return resting


@contextmanager
def run() -> Iterator[World]:
    """A run with its site, before anybody has labeled."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        said = Path(folder) / "said"
        with said.open("w") as output:
            command = [sys.executable, "-m", "teacher.teach", *TEACH, "-t", "400000", "--prompt", PROMPT]
            trainer = subprocess.Popen(command, cwd=folder, stdout=output)
        try:
            while not re.search("Label here: ", said.read_text()):
                time.sleep(0.5)
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            yield World(Path(folder), chromium)
        finally:
            trainer.terminate()
            trainer.wait()


def until_answered(world: World, count: int) -> None:
    """Wait until so many comparisons have all their labels."""
    while world.experiment.comparisons.filter(status="answered").count() < count:
        time.sleep(1.0)


def main() -> None:
    """Run, label, and photograph."""
    with run() as world:
        before_anything(world)
        label(world)
        until_answered(world, ANSWERED)
        of_researchers(world)
        of_invitations(world)
        of_labelers(world)
        of_ends(world)


if __name__ == "__main__":
    main()

"""A real browser, a real site, and clips that a browser can play."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import imageio_ffmpeg
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings as site_settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from human_feedback_site.feedback.kinds import ITEMS, KINDS
from human_feedback_site.feedback.models import Comparison, Example, Experiment, Label, Labeler
from human_feedback_site.feedback.services import accounts, experiments
from teacher.storage import open_storage
from tests.conftest import S3Server

# The first has no window to draw and takes a third of the processor time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PASSWORD = "a-long-enough-password"
LONG_ENOUGH_MS = 450
PAIR = "main[data-state=judging], main[data-state=practice]"
PATIENCE_MS = 60_000  # for what comes, however busy the machine is
SIZES = {"wide": ViewportSize(width=1280, height=800), "narrow": ViewportSize(width=360, height=740)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CLIPS_HAVE_NO_SOUND = {"video-caption": {"enabled": False}}
ABOUT_COLORS = ["color-contrast", "link-in-text-block"]
RED, BLUE = (200, 40, 40), (40, 40, 200)


@dataclass(frozen=True)
class Storage:
    """Hold the folder of clips, which is the site's own or a bucket of an S3 server at ``url``."""

    folder: Path
    url: str | None = None


class Site:
    """A running site with one experiment, and its database."""

    def __init__(self, url: str, storage: Storage, clips: tuple[Path, Path]) -> None:
        self.url = url
        self.media = storage.folder
        # As a trainer does: a server need not notice what changes in its folder behind its back.
        self.store = open_storage(site_settings.TEACHER_STORAGE)
        self.media_url = storage.url or url
        self.clips = clips
        self.owner = User.objects.create_user("ada", password=PASSWORD, is_staff=True)
        self.experiment, _ = experiments.put_experiment(
            self.owner,
            "hopper",
            uuid4(),
            {
                "env_id": "ShortHopper-v1",
                "prompt": "Which one hops higher?",
                "n_labels": 100,
                "fps": 20,
                "has_true_reward": True,
            },
        )

    @property
    def label_url(self) -> str:
        return f"{self.url}/experiments/hopper/label"

    def invite(self, name: str = "mia") -> str:
        accounts.invite(self.experiment, name)
        return accounts.invite_url(self.experiment, name, self.url)

    def add(self, count: int, phase: str = "training", kind: str = "pair") -> list[UUID]:
        """Register comparisons whose clips are red and blue by turns; the first one is red."""
        uuids = [uuid4() for _ in range(count)]
        new = []
        for uuid in uuids:
            keys = [f"hopper/{uuid}/{item}.mp4" for item in ITEMS[: KINDS[kind].size]]
            for key, clip in zip(keys, cycle(self.clips), strict=False):
                self.store.put(key, clip)
            items = list(zip(keys, (2.0, 1.0, 3.0, 0.0), strict=False))
            new.append(experiments.NewComparison(uuid, kind, phase, 100, 1, items))
        experiments.register_comparisons(self.experiment, new)
        return uuids

    def explain(self, better: str, explanation: str, *, practice: bool = False, kind: str = "pair") -> None:
        """Add an example, of a comparison that is not asked any more."""
        comparison = Comparison.objects.get(uuid=self.add(1, kind=kind)[0])
        experiments.cancel_comparisons(self.experiment, [comparison.uuid])
        Example.objects.create(
            experiment=self.experiment,
            comparison=comparison,
            better=better,
            explanation=explanation,
            practice=practice,
        )

    def film(self, step: int) -> None:
        """Upload a whole episode, whose rewards are predicted."""
        key = f"hopper/episodes/{step}.mp4"
        self.store.put(key, self.clips[0])
        experiments.add_episode(self.experiment, step, key)
        self.experiment.episodes.update(rewards=[0.0, 0.5])

    def set(self, **values: object) -> None:
        Experiment.objects.filter(pk=self.experiment.pk).update(**values)

    def labels(self) -> list[Label]:
        """Return every label, oldest first."""
        return list(Label.objects.select_related("comparison", "labeler").order_by("pk"))

    def decision(self, comparison: Comparison) -> str | None:
        """Return what the newest item of the feed says about a comparison."""
        return comparison.decisions.latest("seq").decision

    def give_password(self, name: str) -> str:
        """Let a labeler sign in with :data:`PASSWORD`; return the user name."""
        user = Labeler.objects.get(name=name).user
        user.set_password(PASSWORD)
        user.save()
        return user.username


class LabelingPage:
    """The labeling page as somebody sees it who sits before it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.unsaved = page.locator("#unsaved")
        self.answered = page.locator("#answered")
        self.toast = page.locator("#toast")

    def open(self, url: str, state: str = "judging") -> LabelingPage:
        """Go to an address that leads to the labeling page, and wait for it."""
        self.page.goto(url)
        self.wait_for(state)
        return self

    def begin(self, site: Site, pairs: int) -> LabelingPage:
        """Add comparisons, and come by an invitation to judge them."""
        site.add(pairs)
        return self.open(site.invite())

    def wait_for(self, state: str) -> None:
        """Wait until the page shows a pair (``judging``), or one of its other states."""
        self.page.wait_for_selector(f"main[data-state={state}]", state="attached")

    def watch(self) -> None:
        """Look at the pair for as long as nobody judges faster; the next one may still be on its way."""
        self.page.wait_for_selector(PAIR, state="attached")
        self.page.wait_for_timeout(LONG_ENOUGH_MS)

    def press(self, key: str) -> None:
        """Press a key when the pair has been seen long enough."""
        self.watch()
        self.page.keyboard.press(key)

    def answer(self, key: str, answered: int) -> None:
        """Press a key, and wait until that many answers are saved."""
        self.press(key)
        self.expect_saved(answered)

    def come_back(self) -> None:
        """Do what a return to the tab does: look for news at once."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def sign_in(self, name: str) -> None:
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()

    def expect_saved(self, answered: int) -> None:
        """Wait until nothing is unsaved and the count of answers is right."""
        expect(self.unsaved).to_be_hidden()
        expect(self.answered).to_have_text(str(answered))

    def until_they_play_together(self, after: float, before: float = 1.0) -> list[dict[str, Any]]:
        """Wait until both videos play between two times in seconds; return what they are doing then."""
        self.page.wait_for_function(
            """([after, before]) => {
                const videos = [...document.querySelectorAll(".frame video")];
                const [left, right] = videos.map((video) => video.paused ? NaN : video.currentTime);
                return after < left && left < before && Math.abs(left - right) < 0.1;
            }""",
            arg=[after, before],
        )
        return self.videos()

    def videos(self) -> list[dict[str, Any]]:
        """Return what the two videos on screen are doing, and the color of their first corner."""
        videos: list[dict[str, Any]] = self.page.evaluate(
            """[...document.querySelectorAll(".frame video")].map((video) => {
                const canvas = document.createElement("canvas");
                canvas.width = canvas.height = 1;
                const brush = canvas.getContext("2d");
                brush.drawImage(video, 0, 0, 8, 8, 0, 0, 1, 1);
                const [red, , blue] = brush.getImageData(0, 0, 1, 1).data;
                const { videoWidth, currentTime, paused, muted } = video;
                return { videoWidth, currentTime, paused, muted, color: red > blue ? "red" : "blue" };
            })"""
        )
        return videos

    def side_of(self, color: str) -> str:
        self.page.wait_for_selector(PAIR, state="attached")
        return ("left", "right")[[video["color"] for video in self.videos()].index(color)]


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A red and a blue clip of one second, with something that moves."""
    folder = tmp_path_factory.mktemp("clips")
    return _clip(folder / "red.mp4", RED), _clip(folder / "blue.mp4", BLUE)


def _clip(path: Path, color: tuple[int, int, int]) -> Path:
    writer = imageio_ffmpeg.write_frames(
        str(path), (128, 96), fps=20, output_params=["-movflags", "+faststart"]
    )
    writer.send(None)
    for index in range(20):
        frame = np.full((96, 128, 3), color, np.uint8)
        frame[40:56, 4 + 5 * index : 20 + 5 * index] = 255
        writer.send(frame)
    writer.close()
    return path


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. Its driver keeps an event loop in this thread, so it must not outlive the package."""
    if CHROMIUM is None:
        pytest.fail("The browser tests need Chromium; install the package chromium.")
    expect.set_options(timeout=PATIENCE_MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the loop is the driver's own: no view runs in it
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
            yield chromium
            chromium.close()


@pytest.fixture
def storage(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """The site's own folder, or with the parameter ``s3`` a bucket."""
    if getattr(request, "param", "folder") == "folder":
        settings.TEACHER_STORAGE = str(tmp_path / "media")
        return Storage(tmp_path / "media")
    server: S3Server = request.getfixturevalue("s3_server")
    server.use(monkeypatch, settings)
    settings.TEACHER_STORAGE = f"s3://{server.bucket}/{tmp_path.name}"
    return Storage(server.root / server.bucket / tmp_path.name, server.endpoint_url)


@pytest.fixture
def site(
    browser: Browser, live_server: LiveServer, settings: Settings, storage: Storage, clips: tuple[Path, Path]
) -> Site:
    """A site with one experiment and no comparisons."""
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.MD5PasswordHasher"
    ]  # the slow ones take a second each
    return Site(live_server.url, storage, clips)


@pytest.fixture
def new_page(browser: Browser, site: Site) -> Iterator[Callable[..., Page]]:
    """Make fresh browser profiles by language.

    Whatever a test does, no script fails, the content security policy stops nothing and no other host is
    contacted.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def new_page(locale: str, *, touch: bool = False) -> Page:
        size = SIZES["narrow" if touch else "wide"]
        context = browser.new_context(locale=locale, viewport=size, has_touch=touch, is_mobile=touch)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on(
            "console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None
        )
        context.on("request", lambda request: faults.append(request.url) if is_foreign(request.url) else None)
        return context.new_page()

    def is_foreign(address: str) -> bool:
        return not address.startswith((f"{site.url}/", f"blob:{site.url}/", f"{site.media_url}/"))

    yield new_page
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def phone(new_page: Callable[..., Page]) -> LabelingPage:
    """The labeling page on a phone, not opened yet."""
    return LabelingPage(new_page("en-US", touch=True))


@pytest.fixture
def page(new_page: Callable[[str], Page]) -> Page:
    """A page of a browser set to English."""
    return new_page("en-US")


def faults(page: Page) -> list[str]:
    """Tell what is wrong with a page, wide and narrow, light and dark.

    That is what axe finds serious, and where a page is wider than its window, or a card's contents than it.
    In the dark axe looks at colors alone: all else is as in the light.
    """
    page.evaluate(Axe().axe_script)
    return [
        f"{size}, {scheme}: {fault}"
        for size in SIZES
        for scheme in SCHEMES
        for fault in _faults_in_look(page, size, scheme)
    ]


def _faults_in_look(page: Page, size: str, scheme: Literal["light", "dark"]) -> list[str]:
    page.set_viewport_size(SIZES[size])
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    rules = {"rules": CLIPS_HAVE_NO_SOUND} if scheme == "light" else {"runOnly": ABOUT_COLORS}
    violations: list[dict[str, Any]] = page.evaluate(
        "(options) => axe.run(options).then(({ violations }) => violations)",
        {"resultTypes": ["violations"], **rules},
    )
    serious = [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in violations
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]
    too_wide: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    burst: list[str] = page.evaluate(
        """[...document.querySelectorAll(".card")]
            .filter((card) => getComputedStyle(card).overflowX === "visible")
            .filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)
            .map((card) => `it does not fit: ${card.innerText}`)"""
    )
    return [*serious, *burst, *([f"{too_wide} pixels are cut off"] if too_wide > 0 else [])]


@pytest.fixture
def labeling(page: Page) -> LabelingPage:
    """The labeling page, not opened yet."""
    return LabelingPage(page)

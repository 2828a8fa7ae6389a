"""Benchmark of the labeling page: time from a key press to the next pair, and from opening the URL to a pair.

Uses the embedded site, ShortHopper-v1 clips at the size and length that labelers see, and headless Chromium.
Measures two times: *playing*, when both videos of the pair have fired ``playing`` and the page has been
repainted; and *moving*, when both have shown a second video frame, which takes at least one frame time. Cold
loads start with an empty cache, a signed-in labeler, and a 10 Mbit/s connection with 20 ms latency, emulated
by Chromium.

    python benchmarks/label_page.py             about two minutes on two cores
"""

import argparse
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import requests
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.table import Table

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.data.segment_pool import SegmentPool
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.labeling.client import (
    MAX_COMPARISONS_PER_REQUEST,
    ClipReference,
    ExperimentSettings,
    FeedbackClient,
    Registration,
)
from teacher.labeling.embedded_site import SiteHandle, ensure_site
from teacher.storage import open_storage

ENV_ID = "ShortHopper-v1"
SECONDS = 1.5
NAME = "benchmark"
CHROMIUM_ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LINE = {"offline": False, "latency": 20, "downloadThroughput": 10e6 / 8, "uploadThroughput": 10e6 / 8}
SETTLE_MS = 700  # longer than the page ignores key presses as accidental
WATCH = """
window.seen = [];
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
const begun = (video) => new Promise((resolve) => video.addEventListener("playing", resolve, { once: true }));
const moving = (video) => new Promise((resolve) => {
  const look = (now, { mediaTime }) => mediaTime > 0 ? resolve(now) : video.requestVideoFrameCallback(look);
  video.requestVideoFrameCallback(look);
});
let pressed = 0;
addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);
addEventListener("DOMContentLoaded", () => {
  const stage = document.querySelector(".stage");
  let last = null;
  new MutationObserver(async () => {
    const videos = [...stage.querySelectorAll(".frame video")];
    if (videos.length < 2 || videos[0] === last) return;
    last = videos[0];
    const start = pressed;
    const [play, move] = [Promise.all(videos.map(begun)), Promise.all(videos.map(moving))];
    await play;
    await painted();
    const shown = performance.now();
    const moved = Math.max(...await move);
    window.seen.push([shown - start, moved - start]);
  }).observe(stage, { childList: true, subtree: true });
});
"""


@dataclass(frozen=True)
class Effort:
    """Size of the benchmark: numbers of answers, of cold page loads, and of clips to render."""

    answers: int
    loads: int
    clips: int = 24


def main() -> None:
    """Measure warm and cold times and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="check that the script works")
    effort = Effort(answers=12, loads=2, clips=4) if parser.parse_args().quick else Effort(100, 15)
    with tempfile.TemporaryDirectory() as folder, running_site(Path(folder)) as site:
        links = publish(site, effort, Path(folder))
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
            warm = answer_many(browser, next(links), effort.answers)
            cold = [load_cold(browser, next(links)) for _ in range(effort.loads)]
            browser.close()
    report(np.array(warm), np.array(cold))


@contextmanager
def running_site(folder: Path) -> Iterator[SiteHandle]:
    """Run the embedded site that a run starts on this machine."""
    site = ensure_site(folder / "state")
    try:
        yield site
    finally:
        site.release()


def publish(site: SiteHandle, effort: Effort, folder: Path) -> Iterator[str]:
    """Register enough comparisons, as a trainer does; return an iterator of new labelers' invitation URLs."""
    task = describe_task(ENV_ID)
    clips = render(effort.clips, folder / "clips")
    settings = ExperimentSettings(
        name=NAME,
        run_id=uuid4(),
        env_id=ENV_ID,
        prompt="Choose the clip in which the robot moves forward better without falling over.",
        n_labels=None,
        fps=task.fps,
        has_true_reward=True,
    )
    client = FeedbackClient(site.url, site.token)
    client.put_experiment(settings)
    store = open_storage(site.storage)
    numbers = itertools.count()
    registrations = []
    for _ in range(effort.answers + 3 * (effort.loads + 1)):
        uuid = uuid4()
        keys = [f"{NAME}/{uuid}/{side}.mp4" for side in ("first", "second")]
        for key in keys:
            store.put(key, clips[next(numbers) % len(clips)])
        items = tuple(ClipReference(key, 0.0) for key in keys)
        registrations.append(Registration(uuid=uuid, phase="training", step=0, priority=1, items=items))
    for start in range(0, len(registrations), MAX_COMPARISONS_PER_REQUEST):
        client.register(NAME, registrations[start : start + MAX_COMPARISONS_PER_REQUEST])
    return (invitation(site, f"labeler-{number}") for number in itertools.count())


def invitation(site: SiteHandle, labeler: str) -> str:
    """Create an invitation URL that signs in one labeler."""
    with requests.Session() as session:
        session.trust_env = False  # don't use a proxy for localhost
        reply = session.post(
            f"{site.url}/api/v1/experiments/{NAME}/invites",
            json={"labeler": labeler},
            headers={"Authorization": f"Bearer {site.token}"},
            timeout=30,
        )
        reply.raise_for_status()
        return str(reply.json()["invite_url"])


def render(n: int, folder: Path) -> Sequence[Path]:
    """Render ``n`` clips of random behavior, as labelers see them before training."""
    task = describe_task(ENV_ID)
    folder.mkdir()
    pool = SegmentPool(round(SECONDS * task.fps), seed=0)
    pool.extend(itertools.islice(random_trajectories(task, 0), n))
    segments = [segment for pair in pool.sample_pairs(n // 2) for segment in pair]
    with ClipRenderer(workers=1) as renderer:
        jobs = [ClipJob(ClipSpec.of(each), folder / f"{i}.mp4", task.fps) for i, each in enumerate(segments)]
        return [future.result() for future in [renderer.submit(job) for job in jobs]]


def answer_many(browser: Browser, link: str, times: int) -> list[tuple[float, float]]:
    """Answer pairs; return (playing, moving) milliseconds from each key press to the next pair."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.add_init_script(WATCH)
    page.goto(link)
    wait_for_pairs(page, 1)
    for answered in range(1, times + 1):
        page.wait_for_timeout(SETTLE_MS)
        page.keyboard.press("ArrowLeft" if answered % 2 else "ArrowRight")
        wait_for_pairs(page, 1 + answered)
    times_seen: list[tuple[float, float]] = page.evaluate("window.seen")
    page.context.close()
    return times_seen[1:]


def load_cold(browser: Browser, link: str) -> tuple[float, float]:
    """Open the page with an empty cache; return (playing, moving) milliseconds until the first pair."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.request.get(link)
    page = context.new_page()
    line = context.new_cdp_session(page)
    line.send("Network.enable")
    line.send("Network.emulateNetworkConditions", LINE)
    page.add_init_script(WATCH)
    page.goto(f"{link.split('/join/', maxsplit=1)[0]}/experiments/{NAME}/label", wait_until="commit")
    wait_for_pairs(page, 1)
    [seen] = page.evaluate("window.seen")
    context.close()
    return seen[0], seen[1]


def wait_for_pairs(page: Page, count: int) -> None:
    """Wait until ``count`` pairs have played."""
    while page.evaluate("window.seen?.length ?? 0") < count:  # the page's CSP forbids wait_for_function
        page.wait_for_timeout(100)


def report(warm: NDArray[np.float64], cold: NDArray[np.float64]) -> None:
    """Print medians and 95th percentiles."""
    table = Table(title="Milliseconds until both clips of the next pair play")
    for heading in ("", "n", "median", "p95", "goal"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = [
        ("key to playing", warm[:, 0], "50"),
        ("key to moving", warm[:, 1], ""),
        ("cold load at 10 Mbit/s to playing", cold[:, 0], "800"),
    ]
    for name, values, goal in rows:
        median, p95 = np.quantile(values, (0.5, 0.95))
        table.add_row(name, str(len(values)), f"{median:.0f}", f"{p95:.0f}", goal)
    Console().print(table)


if __name__ == "__main__":
    main()

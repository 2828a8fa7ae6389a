"""Draw the moving picture of the landing page and the README: pairs of clips, clicks, and the agent's films.

    python scripts/loop_picture.py runs/ShortHopper-v1/flip

Shows pairs that the run asked about, the label that each got, and the film of the agent after it. The run is
that of the gallery's backflip: a scripted teacher gave a quarter of the labels before training, and the
others at a constant rate.
"""

import argparse
import contextlib
import io
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

from teacher.clips.render import ClipSpec, frames_of
from teacher.data.ledger import Answered
from teacher.queries.judges import Behavior
from teacher.runs.saved_run import SavedRun

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "loop.webp"
PROMPT = "Which robot is closer to a backflip?"
STAGES = ((0.02, 0), (0.5, 0.4), (0.95, 1))
"""Share of the labels at which a pair is shown, and share of the steps of the film that follows it."""
CLIP, FILM = 186, 232  # side lengths in pixels
FPS, CLICK, SWITCH, END = 10, 9, 12, 30
"""Frames per second; frames from the start of a stage to the click, the film and the next stage."""
EVERY, LONGER = 4, 20  # steps per frame; additional frames of the last stage
BOXES = """Object.fromEntries([..."abc"].map((id) => {
  const box = document.getElementById(id).getBoundingClientRect();
  return [id, [box.x, box.y, box.width, box.height].map(Math.round)];
}))"""
HTML = """
<style>
  * {{ box-sizing: border-box; margin: 0; }}
  body {{ width: 800px; height: 376px; background: #f4f5f8; color: #161a22; font: 600 19px system-ui;
    display: flex; align-items: stretch; padding: 14px; gap: 14px; }}
  section {{ background: #fff; border: 1px solid #d9dde5; border-radius: 14px; padding: 14px; flex: 1;
    display: flex; flex-direction: column; align-items: center; gap: 10px; }}
  #film {{ flex: none; width: 262px; }}
  h1 {{ font-size: 19px; }} p {{ font-size: 16px; font-weight: 400; color: #565f70; }} b {{ color: #161a22; }}
  .pair {{ display: flex; gap: 14px; }}
  .clip {{ width: {clip}px; height: {clip}px; border-radius: 8px; outline: 4px solid transparent; }}
  .chosen {{ outline-color: #3350c8; }}
  .film {{ width: {film}px; height: {film}px; }}
  .buttons {{ display: flex; gap: 14px; font-size: 16px; }}
  .buttons span {{ width: {clip}px; padding: 8px; text-align: center; border: 1px solid #c3c9d5;
    border-radius: 9px; }}
  .buttons .on {{ background: #3350c8; border-color: #3350c8; color: #fff; }}
</style>
<section><h1>1. People click the better clip</h1><p>{prompt}</p>
  <div class="pair"><div class="clip {left}" id="a"></div><div class="clip {right}" id="b"></div></div>
  <div class="buttons"><span class="{left_on}">← Left</span><span class="{right_on}">Right →</span></div>
  <p>label <b>{label}</b> of {labels}</p></section>
<section id="film"><h1>2. The agent learns it</h1><p>from the predicted reward</p>
  <div class="film" id="c"></div><p>after <b>{filmed}</b> labels</p></section>
"""


def clear_pair(pairs: Sequence[Answered], share: float) -> int:
    """Return the index of the pair whose clips differ most, among those near a share of the labels."""
    behavior, width = Behavior("teacher.behaviors:backflip"), max(1, len(pairs) // 25)
    first = min(int(share * len(pairs)), len(pairs) - width)

    def difference(index: int) -> float:
        one, other = map(behavior, pairs[index].items)
        return abs(one - other)

    return max(range(first, first + width), key=difference)


def frames_in(path: Path) -> Iterator[Image.Image]:
    """Yield the frames of a video."""
    frames = imageio_ffmpeg.read_frames(str(path))
    size = next(frames)["size"]
    for frame in frames:
        yield Image.frombytes("RGB", size, frame)


def pasted(base: Image.Image, frame: Image.Image, box: Sequence[int]) -> None:
    """Paste a frame into a box with round corners."""
    x, y, width, height = box
    mask = Image.new("L", (2 * width, 2 * height))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, 2 * width, 2 * height), 16, fill=255)
    small = frame.resize((width, height), Image.Resampling.LANCZOS)
    base.paste(small, (x, y), mask.resize((width, height)))


def draw_pointer(base: Image.Image, x: float, y: float) -> None:
    """Draw a mouse pointer with its tip at a point."""
    outline = [(0, 0), (0, 22), (5, 17), (9, 25), (13, 23), (9, 16), (16, 16)]
    ImageDraw.Draw(base).polygon([(x + dx, y + dy) for dx, dy in outline], fill="black", outline="white")


def shown(page: Page, **words: object) -> tuple[Image.Image, dict[str, list[int]]]:
    """Return a screenshot of the page with these words, and the boxes of its clips."""
    page.set_content(HTML.format(prompt=PROMPT, clip=CLIP, film=FILM, **words))
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    boxes = page.evaluate(BOXES)
    return picture, boxes


def draw(run: SavedRun, page: Page) -> Iterator[Image.Image]:
    """Yield the frames of the picture."""
    with contextlib.closing(run.open_ledger()) as ledger:
        pairs = list(ledger.answered())
    films = sorted((run.folder / "videos").glob("step-*.mp4"))
    filmed, film = 0, itertools.cycle([next(frames_in(films[0]))])
    for share, of_steps in STAGES:
        number = clear_pair(pairs, share)
        pair = pairs[number]
        clips = [
            [Image.fromarray(frame) for frame in frames_of(ClipSpec(each.recipe, each.start), 2 * CLIP)]
            for each in pair.items
        ]
        chosen = 0 if pair.decision == "first" else 1
        for index in range(END if of_steps < 1 else END + LONGER):
            if index == SWITCH:
                path = films[round(of_steps * (len(films) - 1))]
                film = itertools.cycle(list(itertools.islice(frames_in(path), 0, 400, EVERY)))
                filmed = round(len(pairs) * (1 + 3 * of_steps) / 4)
            clicked = index >= CLICK
            marks = ["chosen on" if clicked and chosen == side else "" for side in (0, 1)]
            base, boxes = shown(
                page, left=marks[0], right=marks[1], left_on=marks[0], right_on=marks[1],
                label=f"{number + clicked}", labels=len(pairs), filmed=filmed,
            )  # fmt: skip
            for name, clip in zip("ab", clips, strict=True):
                pasted(base, clip[EVERY * index % len(clip)], boxes[name])
            pasted(base, next(film), boxes["c"])
            x, y, width, height = boxes["ab"[chosen]]
            way = float(np.clip(index / (CLICK - 1), 0, 1)) ** 0.6
            draw_pointer(base, 265 + way * (x + width / 2 - 265), 355 + way * (y + height * 0.7 - 355))
            yield base


def main() -> None:
    """Draw the picture of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page(viewport={"width": 800, "height": 376})
        first, *others = draw(SavedRun(given.run_dir), page)
    first.save(
        PICTURE, save_all=True, append_images=others, duration=1000 // FPS, loop=0, quality=45, method=6
    )
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""How much does a clip cost? A pair of 1.5 s ShortHopper-v1 clips at 256 px, from recipe to confirmed object.

Two ways, one after the other in every repeat: RL-Teacher's ``ClipRenderer`` with one worker, and the same
actions played in Gymnasium's ``Hopper-v5``, drawn by its ``render`` and written by its ``save_video``. Both
make the same number of frames a second for the same store: an S3 server on this machine, whose own time is
not counted. Wall seconds, and CPU seconds of this process and all it started, the encoders included.

Printed as well: what the first clip costs, how near the decoded frames are to the drawn ones, and how many
clips a second one and two workers make.

    python benchmarks/clips.py                            about three minutes on two cores
    python benchmarks/clips.py --sides teacher --quick    a trial of the benchmark itself, without moviepy
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Protocol

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track
from rich.table import Table

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.encode import HOLD_SECONDS, Frame
from teacher.clips.render import ReplayRenderer
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, SegmentPair
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.storage import S3Storage

ENV_ID = "ShortHopper-v1"
SECONDS = 1.5
SIZE = 256
SIDES = ("teacher", "gymnasium")
NAMES = {"teacher": "RL-Teacher", "gymnasium": "Gymnasium"}
FOOT = (slice(172, 236), slice(101, 165))
"""Where both cameras have the foot of an upright hopper: rows and columns."""
INSTALL_MOVIEPY = "pip install --no-deps moviepy proglog decorator python-dotenv imageio tqdm"


@dataclass(frozen=True)
class Effort:
    """How much is made.

    Attributes:
        repeats: of what is timed, but for the first clips.
        pairs: of ours in each repeat, because CPU times come in hundredths of a second; Gymnasium makes one.
        clips: in each repeat, for the throughput of workers.
        seconds: of a clip.
    """

    repeats: int
    pairs: int = 5
    clips: int = 16
    seconds: float = SECONDS


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and of processors."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Quality:
    """Of the decoded frames against those drawn: PSNR in dB over all frames, and bytes of a clip."""

    luma: float
    rgb: float
    size: float


class Side(Protocol):
    """A way from segments to clips."""

    def render(self, segments: Sequence[Segment], folder: Path) -> list[Path]: ...

    def frames(self, segment: Segment) -> list[Frame]:
        """As drawn, without the still ones at the end."""

    def close(self) -> None: ...


class TeacherSide:
    """A pool of rendering processes, as a run has one."""

    def __init__(self, task: TaskInfo, workers: int = 1) -> None:
        self._task, self._renderer = task, ClipRenderer(workers)

    def render(self, segments: Sequence[Segment], folder: Path) -> list[Path]:
        clips: list[Future[Path]] = [
            self._renderer.submit(
                ClipJob(ClipSpec.of(segment), folder / f"{index}.mp4", self._task.fps, size=SIZE)
            )
            for index, segment in enumerate(segments)
        ]
        return [clip.result() for clip in clips]

    def frames(self, segment: Segment) -> list[Frame]:
        with contextlib.closing(ReplayRenderer(self._task.env_id, self._task.kwargs, SIZE)) as stage:
            return list(stage.frames(ClipSpec.of(segment)))

    def close(self) -> None:
        self._renderer.close()


class GymnasiumSide:
    """Gymnasium alone: its viewer and its ``save_video``, which needs moviepy."""

    def __init__(self, task: TaskInfo) -> None:
        self._fps = task.fps

    @functools.cached_property
    def _env(self) -> gym.Env[Any, Any]:
        os.environ.setdefault("MUJOCO_GL", "egl")  # it would look for a screen first
        return gym.make(
            "Hopper-v5", terminate_when_unhealthy=False, render_mode="rgb_array", width=SIZE, height=SIZE
        )

    def render(self, segments: Sequence[Segment], folder: Path) -> list[Path]:
        from gymnasium.utils.save_video import save_video  # noqa: PLC0415 - needs moviepy

        held = math.ceil(HOLD_SECONDS * self._fps)
        for index, segment in enumerate(segments):
            frames = self.frames(segment)
            save_video([*frames, *frames[-1:] * held], str(folder), fps=self._fps, name_prefix=str(index))
        return [folder / f"{index}-episode-0.mp4" for index in range(len(segments))]

    def frames(self, segment: Segment) -> list[Frame]:
        frames: list[Any] = []
        if viewer := self._env.unwrapped.mujoco_renderer.viewer:  # type: ignore[attr-defined]
            viewer.make_context_current()  # another one's may be, since the last frame
        observation, _ = self._env.reset(seed=segment.recipe.seed)
        for step, action in enumerate(segment.recipe.actions, -segment.start):
            assert step < 0 or np.array_equal(observation, segment.observations[step]), "other physics"
            observation, *_ = self._env.step(action)
            if step >= 0:
                frames.append(self._env.render())
        return frames

    def close(self) -> None:
        self._env.close()


def open_side(name: str, task: TaskInfo) -> Side:
    return TeacherSide(task) if name == "teacher" else GymnasiumSide(task)


def publish(side: Side, segments: Sequence[Segment], folder: Path, storage: S3Storage) -> None:
    """Render, upload and confirm, under new names."""
    name = uuid.uuid4()
    for index, path in enumerate(side.render(segments, folder)):
        key = f"benchmark/{name}/{index}.mp4"
        storage.put(key, path)
        assert storage.size(key) == path.stat().st_size


def record_pairs(task: TaskInfo, n: int, seed: int, seconds: float = SECONDS) -> list[SegmentPair]:
    """Pairs of segments of random episodes, cut and drawn as in a run."""
    pool = SegmentPool(round(seconds * task.fps), seed=seed)
    pool.extend(itertools.islice(random_trajectories(task, seed), n))
    return pool.sample_pairs(n)


class Meter:
    """Measures this process and all that descend from it, except ``uncounted`` ones."""

    def __init__(self, *uncounted: int) -> None:
        self._uncounted = uncounted

    def measure(self, work: Callable[[], object], times: int = 1) -> Cost:
        """The mean cost of ``times`` times ``work``, during which no process may be left to itself."""
        wall, cpu = time.perf_counter(), self._cpu_seconds(os.getpid())
        for _ in range(times):
            work()
        wall, cpu = time.perf_counter() - wall, self._cpu_seconds(os.getpid()) - cpu
        return Cost(wall / times, cpu / times)

    def _cpu_seconds(self, process: int) -> float:
        """User and system time, and that of children that ended, which the kernel adds to their parent's."""
        folder = Path(f"/proc/{process}")
        ticks = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:15]
        children = {
            int(child) for path in folder.glob("task/*/children") for child in path.read_text().split()
        }
        own = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return own + sum(map(self._cpu_seconds, children.difference(self._uncounted)))


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[tuple[S3Storage, int]]:
    """A store in ``folder`` behind a real S3 server, and the server's process."""
    (folder / "clips").mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = "benchmark-key", uuid.uuid4().hex
    keys = f"{os.environ['AWS_ACCESS_KEY_ID']},{os.environ['AWS_SECRET_ACCESS_KEY']}"
    server = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("rclone")), "serve", "s3", str(folder), "--addr", address),
            *("--auth-key", keys, "--vfs-cache-mode", "off", "--config", os.devnull, "--quiet"),
        ]
    )
    try:
        _wait_for(address, server)
        yield S3Storage("clips", endpoint_url=f"http://{address}"), server.pid
    finally:
        server.kill()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"the S3 server did not listen on {address}")


def measure_quality(side: Side, segments: Sequence[Segment], folder: Path) -> Quality:
    """Every side against its own frames; luma is BT.709's, of the decoded RGB."""
    paths = side.render(segments, folder)
    drawn = np.concatenate([side.frames(segment) for segment in segments]).astype(float)
    decoded = np.concatenate(
        [decode(path)[: len(segment)] for path, segment in zip(paths, segments, strict=True)]
    )
    error = decoded - drawn
    return Quality(
        luma=psnr(error @ (0.2126, 0.7152, 0.0722)),
        rgb=psnr(error),
        size=mean(path.stat().st_size for path in paths),
    )


def psnr(error: NDArray[np.float64]) -> float:
    """In dB, with 255 as the peak."""
    return float(20 * np.log10(255) - 10 * np.log10(np.mean(error**2)))


def decode(path: Path) -> NDArray[np.uint8]:
    """The pictures in a clip, ``(frames, height, width, 3)``."""
    meta, *frames = imageio_ffmpeg.read_frames(str(path))
    width, height = meta["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames])


@dataclass(frozen=True)
class Results:
    """What is printed and kept. The costs are those of each repeat.

    Attributes:
        first: of the first clip of each side, with all that has to start and be made for it.
        pair: of a pair of clips, by side.
        throughput: of one clip, by the number of workers.
        quality: by side.
    """

    first: dict[str, Cost]
    pair: dict[str, list[Cost]]
    throughput: dict[int, list[Cost]]
    quality: dict[str, Quality]


@dataclass(frozen=True)
class Bench:
    """The table that all is measured at."""

    task: TaskInfo
    pairs: Sequence[SegmentPair]
    effort: Effort
    folder: Path
    console: Console

    def measure(self, names: Sequence[str], picture: Path | None) -> Results:
        segments = [segment for pair in self.pairs for segment in pair]
        with s3_server(self.folder / "store") as (storage, server), contextlib.ExitStack() as stack:
            meter, sides = Meter(server), {name: open_side(name, self.task) for name in names}
            for side in sides.values():
                stack.callback(side.close)
            first = {
                name: meter.measure(functools.partial(publish, side, segments[:1], self.folder, storage))
                for name, side in track(sides.items(), "first clips", console=self.console)
            }
            pair = self._pairs(meter, sides, storage)
            quality = {
                name: measure_quality(side, self.pairs[0], self.folder)
                for name, side in track(sides.items(), "frames", console=self.console)
            }
            if picture is not None:
                draw_picture(sides, segments, self.folder, picture)
        return Results(first, pair, self._throughput(segments), quality)

    def _pairs(self, meter: Meter, sides: dict[str, Side], storage: S3Storage) -> dict[str, list[Cost]]:
        costs: dict[str, list[Cost]] = {name: [] for name in sides}
        for repeat in track(range(self.effort.repeats), "pairs of clips", console=self.console):
            pair = self.pairs[repeat % len(self.pairs)]
            for name, side in sides.items():
                work = functools.partial(publish, side, pair, self.folder, storage)
                costs[name].append(meter.measure(work, self.effort.pairs if name == "teacher" else 1))
        return costs

    def _throughput(self, segments: Sequence[Segment]) -> dict[int, list[Cost]]:
        meter, costs = Meter(), {workers: list[Cost]() for workers in (1, 2)}
        clips = list(itertools.islice(itertools.cycle(segments), self.effort.clips))
        with contextlib.ExitStack() as stack:
            sides = {workers: TeacherSide(self.task, workers) for workers in costs}
            for workers, side in sides.items():
                stack.callback(side.close)
                side.render(clips[:workers], self.folder)  # each starts with the first that comes
            for _ in track(range(self.effort.repeats), "1 and 2 workers", console=self.console):
                for workers, side in sides.items():
                    cost = meter.measure(functools.partial(side.render, clips, self.folder))
                    costs[workers].append(Cost(cost.wall / len(clips), cost.cpu / len(clips)))
        return costs


def draw_picture(sides: dict[str, Side], segments: Sequence[Segment], folder: Path, target: Path) -> None:
    """The most upright state recorded: of each side as drawn, as decoded, and a part of that enlarged."""
    heights = [segment.observations[1:, 0].max() for segment in segments]
    segment = segments[int(np.argmax(heights))]
    index = int(np.argmax(segment.observations[1:, 0]))
    gap, head = 12, 30
    sheet = Image.new("RGB", (4 * gap + 3 * SIZE, len(sides) * (head + SIZE) + gap), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for row, (name, side) in enumerate(sides.items()):
        drawn = side.frames(segment)[index]
        decoded = decode(side.render([segment], folder)[0])[index]
        titles = (f"{NAMES[name]}, as drawn", "decoded from its mp4", "its foot, 4 times larger")
        for column, (title, picture) in enumerate(zip(titles, (drawn, decoded, decoded[FOOT]), strict=True)):
            x, y = gap + column * (SIZE + gap), row * (head + SIZE) + head
            pen.text((x, y - 8), title, "black", font, "ls")
            sheet.paste(Image.fromarray(picture).resize((SIZE, SIZE), Image.Resampling.NEAREST), (x, y))
    sheet.save(target, optimize=True)


def print_tables(results: Results, console: Console) -> None:
    """Medians, ranges and the ratios that matter."""
    table = Table(
        *("a pair of clips", "CPU s", "wall s", "first clip, CPU s", "wall s"),
        *("PSNR luma, dB", "RGB, dB", "kB a clip"),
    )
    for name, costs in results.pair.items():
        first, quality = results.first[name], results.quality[name]
        table.add_row(
            NAMES[name],
            *(spread([cost.cpu for cost in costs]), spread([cost.wall for cost in costs])),
            *(f"{first.cpu:.2f}", f"{first.wall:.2f}"),
            *(f"{quality.luma:.1f}", f"{quality.rgb:.1f}", f"{quality.size / 1000:.1f}"),
        )
    console.print(table)
    if len(results.pair) == len(SIDES):
        cpu, wall = (
            median([getattr(cost, what) for cost in results.pair["gymnasium"]])
            / median([getattr(cost, what) for cost in results.pair["teacher"]])
            for what in ("cpu", "wall")
        )
        console.print(f"Gymnasium / RL-Teacher = {cpu:.1f} (CPU), {wall:.1f} (wall)\n")
    table = Table("workers", "clips a second", "CPU s a clip")
    for workers, costs in results.throughput.items():
        table.add_row(
            str(workers), spread([1 / cost.wall for cost in costs]), spread([cost.cpu for cost in costs], 3)
        )
    console.print(table)
    one, two = (median([1 / cost.wall for cost in costs]) for costs in results.throughput.values())
    console.print(f"2 workers / 1 worker = {two / one:.2f}")


def spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def main() -> None:
    """Measure, print, and keep what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=_at_least_one, default=7)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="try the benchmark itself, with short clips and next to no repeats",
    )
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--json", type=Path, help="keep the results in this file")
    parser.add_argument("--picture", type=Path, help="draw one state as each side shows it into this PNG")
    arguments = parser.parse_args()
    if "gymnasium" in arguments.sides and importlib.util.find_spec("moviepy") is None:
        parser.exit(1, f"Gymnasium's save_video needs moviepy: {INSTALL_MOVIEPY}\n")
    effort = Effort(1, pairs=1, clips=2, seconds=0.5) if arguments.quick else Effort(arguments.repeats)
    console, task = Console(width=140), describe_task(ENV_ID)
    with tempfile.TemporaryDirectory() as folder:
        pairs = record_pairs(task, max(2, effort.repeats), seed=1, seconds=effort.seconds)
        bench = Bench(task, pairs, effort, Path(folder), console)
        results = bench.measure(arguments.sides, arguments.picture)
    print_tables(results, console)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(results), indent=1) + "\n")


if __name__ == "__main__":
    main()

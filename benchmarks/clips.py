"""Benchmark of the cost of clips: two 1.5 s ShortHopper-v1 clips at 256 px, from recipe to uploaded object.

Every repeat measures two methods in turn: RL-Teacher's ``ClipRenderer`` with one worker, and Gymnasium, which
plays the same actions in ``Hopper-v5`` with its own ``render`` and ``save_video``. Both use the same frame
rate and upload to the same local S3 server, whose own time isn't counted. Reports wall-clock seconds, and CPU
seconds of this process and its child processes, including the encoders.

Also prints the cost of the first clip, how closely decoded frames match the rendered ones, and the number of
clips per second with one and two workers.

    python -m benchmarks.clips                            about three minutes on two cores
    python -m benchmarks.clips --sides teacher --quick    a quick check of the script, without moviepy
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.clips_sides import SIZE, Side, TeacherSide, open_side
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, SegmentPair
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.storage import S3Storage

ENV_ID = "ShortHopper-v1"
SECONDS = 1.5
SIDES = ("teacher", "gymnasium")
NAMES = {"teacher": "RL-Teacher", "gymnasium": "Gymnasium"}
FOOT = (slice(172, 236), slice(101, 165))
"""Rows and columns of a frame that show an upright hopper's foot, in both cameras."""
INSTALL_MOVIEPY = "pip install --no-deps moviepy proglog decorator python-dotenv imageio tqdm"


@dataclass(frozen=True)
class Effort:
    """Size of the benchmark.

    Attributes:
        repeats: number of timings, except of the first clips.
        pairs: pairs that RL-Teacher renders per repeat. More than one because CPU times have a resolution of
            10 ms; Gymnasium renders one pair.
        clips: clips per repeat in the throughput measurement.
        seconds: length of a clip.
    """

    repeats: int
    pairs: int = 5
    clips: int = 16
    seconds: float = SECONDS


@dataclass(frozen=True)
class Cost:
    """Wall-clock and CPU seconds."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Quality:
    """Quality of decoded clips.

    Attributes:
        luma: PSNR of the decoded against the rendered frames' luma, in dB over all frames.
        rgb: PSNR over all RGB channels, in dB.
        size: mean bytes per clip.
    """

    luma: float
    rgb: float
    size: float


def publish(side: Side, segments: Sequence[Segment], folder: Path, storage: S3Storage) -> None:
    """Render segments, upload the clips under new keys and check the stored sizes."""
    name = uuid.uuid4()
    for index, path in enumerate(side.render(segments, folder)):
        key = f"benchmark/{name}/{index}.mp4"
        storage.put(key, path)
        assert storage.size(key) == path.stat().st_size


def record_pairs(task: TaskInfo, n: int, seed: int, seconds: float = SECONDS) -> list[SegmentPair]:
    """Record random episodes and sample ``n`` pairs of segments from them, as a run does."""
    pool = SegmentPool(round(seconds * task.fps), seed=seed)
    pool.extend(itertools.islice(random_trajectories(task, seed), n))
    return pool.sample_pairs(n)


class Meter:
    """Measures the time used by this process and its descendants, except those with ``uncounted`` PIDs."""

    def __init__(self, *uncounted: int) -> None:
        self._uncounted = uncounted

    def measure(self, work: Callable[[], object], times: int = 1) -> Cost:
        """Run ``work`` a number of times and return the mean cost; it must wait for processes it starts."""
        wall, cpu = time.perf_counter(), self._cpu_seconds(os.getpid())
        for _ in range(times):
            work()
        wall, cpu = time.perf_counter() - wall, self._cpu_seconds(os.getpid()) - cpu
        return Cost(wall / times, cpu / times)

    def _cpu_seconds(self, process: int) -> float:
        """Return user plus system time of a process tree, including children that ended."""
        folder = Path(f"/proc/{process}")
        ticks = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:15]
        children = {
            int(child) for path in folder.glob("task/*/children") for child in path.read_text().split()
        }
        own = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return own + sum(map(self._cpu_seconds, children.difference(self._uncounted)))


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[tuple[S3Storage, int]]:
    """Run an S3 server on ``folder``; yield a client for its bucket and the server's PID."""
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
    raise SystemExit(f"the S3 server didn't start listening on {address}")


def measure_quality(side: Side, segments: Sequence[Segment], folder: Path) -> Quality:
    """Compare a renderer's decoded clips with its own frames; luma is BT.709, computed from RGB."""
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
    """Return the PSNR in dB of a difference of images with a peak value of 255."""
    return float(20 * np.log10(255) - 10 * np.log10(np.mean(error**2)))


def decode(path: Path) -> NDArray[np.uint8]:
    """Return the frames of a clip as an array of shape ``(frames, height, width, 3)``."""
    meta, *frames = imageio_ffmpeg.read_frames(str(path))
    width, height = meta["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames])


@dataclass(frozen=True)
class Results:
    """All measurements, as printed and written to the JSON file.

    Attributes:
        first: cost of each side's first clip, including one-time startup.
        pair: cost of a pair of clips in each repeat, by side.
        throughput: cost of one clip in each repeat, by number of workers.
        quality: image quality, by side.
    """

    first: dict[str, Cost]
    pair: dict[str, list[Cost]]
    throughput: dict[int, list[Cost]]
    quality: dict[str, Quality]


@dataclass(frozen=True)
class Bench:
    """Runs all measurements with one task, set of pairs and temporary folder."""

    task: TaskInfo
    pairs: Sequence[SegmentPair]
    effort: Effort
    folder: Path
    console: Console

    def measure(self, names: Sequence[str], picture: Path | None) -> Results:
        """Measure the named sides; also draw a comparison of one state if ``picture`` is a path."""
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
                side.render(clips[:workers], self.folder)  # starts the worker processes
            for _ in track(range(self.effort.repeats), "1 and 2 workers", console=self.console):
                for workers, side in sides.items():
                    cost = meter.measure(functools.partial(side.render, clips, self.folder))
                    costs[workers].append(Cost(cost.wall / len(clips), cost.cpu / len(clips)))
        return costs


def draw_picture(sides: dict[str, Side], segments: Sequence[Segment], folder: Path, target: Path) -> None:
    """Draw the most upright recorded state: per side, the rendered frame, the decoded one and a close-up."""
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
    """Print medians, ranges, and ratios between sides and between numbers of workers."""
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
    """Format values as ``median (min - max)``."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def main() -> None:
    """Measure, print the tables, and write the JSON file and picture if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=_at_least_one, default=7)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="check that the script works, with short clips and a single repeat",
    )
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--json", type=Path, help="write the results to this JSON file")
    parser.add_argument("--picture", type=Path, help="save frames of one state from each side to this PNG")
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

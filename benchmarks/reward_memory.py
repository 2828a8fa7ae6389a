"""Benchmark of the memory needed to fit the predictor to many labels with large observations.

::

    python benchmarks/reward_memory.py                   # 100,000 pairs of 60 steps of Humanoid-v5: 17.8 GB
    python benchmarks/reward_memory.py --pairs 5000      # same peak memory, 1/20 of the disk space and time
    python benchmarks/reward_memory.py --saved           # load the pairs from a preference file

Fills a dataset with random numbers and fits the predictor to it for one epoch. A dataset larger than 256 MiB
is stored in a memory-mapped file in TMPDIR, by default /var/tmp.

Prints three figures. Anonymous memory (peak RssAnon, sampled every 20 ms) can't be reclaimed. Mapped pages
(peak RssFile) are page cache, which the kernel reclaims when other processes need memory. The peak resident
set size (the kernel's ru_maxrss) includes both and must stay below the limit. The script also sets
RLIMIT_DATA to the limit, so exceeding it with anonymous memory fails.
"""

import argparse
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
import torch
from gymnasium import spaces

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.datasets.preference_files import load_preferences, save_preferences
from teacher.envs.recipe import EpisodeRecipe
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

GIB = 2**30
SAMPLE_SECONDS = 0.02


class Memory(threading.Thread):
    """Thread that samples the peak of each kind of resident memory, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = {"RssAnon": 0, "RssFile": 0}
        self._done = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._done.wait(SAMPLE_SECONDS):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self.most:
                    self.most[name] = max(self.most[name], 1024 * int(value.split()[0]))

    def stop(self) -> None:
        """Stop sampling and wait for the thread to end."""
        self._done.set()
        self.join()


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how many seconds the ``with`` block took."""
    started = time.monotonic()
    yield
    print(f"{what:42} {time.monotonic() - started:8.1f} s", flush=True)


def random_preferences(pairs: int, steps: int, observation: int, action: int) -> Iterator[Preference]:
    """Yield preferences between segments of random numbers; rewards are the observations' first dimension."""
    random = np.random.default_rng(0)
    for number in range(pairs):
        states = random.standard_normal((2, steps + 1, observation), np.float32)
        actions = random.random((2, steps, action), np.float32)
        rewards = states[:, :-1, 0].astype(np.float64)
        first, second = (
            Segment(EpisodeRecipe("Humanoid-v5", {}, 0, a), 0, s[:-1], a, r, s[-1])
            for s, a, r in zip(states, actions, rewards, strict=True)
        )
        value = float(first.true_return > second.true_return)
        yield Preference(UUID(int=(number << 64) + number), first, second, value)


def main() -> None:
    """Fill the dataset, fit the predictor and print the peak memory; fail if it exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=60, help="steps per segment")
    parser.add_argument(
        "--observation", type=int, default=348, help="size of an observation (default: Humanoid-v5's)"
    )
    parser.add_argument("--action", type=int, default=17, help="size of an action (default: Humanoid-v5's)")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--limit", type=float, default=4.0, help="memory limit in GiB")
    parser.add_argument(
        "--saved",
        action="store_true",
        help="save the dataset and fit to the loaded file; needs twice the disk space",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TMPDIR", "/var/tmp")  # noqa: S108
    size = 8 * given.pairs * ((given.steps + 1) * given.observation + given.steps * given.action)
    needed, free = 1.25 * size * (2 if given.saved else 1), shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free:
        parser.error(
            f"{tempfile.gettempdir()} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed; "
            "set TMPDIR to a larger disk"
        )
    limit = int(given.limit * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    observation_space = spaces.Box(-np.inf, np.inf, (given.observation,))
    action_space = spaces.Box(0, 1, (given.action,), np.float32)

    memory = Memory()
    memory.start()
    dataset = PreferenceDataset()
    with timed("filling the dataset"):
        dataset.upsert(random_preferences(given.pairs, given.steps, given.observation, given.action))
    with tempfile.TemporaryDirectory() as folder:
        if given.saved:
            path = Path(folder) / "labels.npz"
            with timed("saving it"):
                save_preferences(path, dataset, observation_space, action_space)
            del dataset
            with timed("loading it"):
                dataset = load_preferences(path)
        config = RewardConfig(model="network", members=given.members)
        predictor = RewardPredictor(observation_space, action_space, config, seed=1)
        with timed("fitting: statistics, an epoch, evaluation"):
            report = predictor.fit(dataset, max_epochs=1)
    memory.stop()

    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\n{given.pairs} pairs, {size / 1e9:.2f} GB, {report.updates} updates, loss {report.loss:.3f}")
    for name, value in {**memory.most, "ru_maxrss": peak}.items():
        print(f"{name:10} {value / GIB:6.2f} GiB   {value / limit:5.0%} of the limit")
    print(f"dataset : peak resident memory = {size / peak:.1f} : 1")
    if peak > limit:
        raise SystemExit("peak resident memory exceeds the limit")


if __name__ == "__main__":
    main()

"""How much memory it takes to fit the predictor to very many labels of large observations.

::

    python benchmarks/reward_memory.py                   # 100,000 pairs of 60 steps of Humanoid-v5: 17.8 GB
    python benchmarks/reward_memory.py --pairs 5000      # the same memory, a twentieth of disk and time
    python benchmarks/reward_memory.py --saved           # from a preference file instead

It fills a dataset with random numbers, as a run with so many labels would, and fits the predictor to it for
one epoch. A dataset beyond 256 MiB lies in a file that is mapped into memory, in TMPDIR or /var/tmp.

What counts as memory: pages of a mapped file are in the process's resident set while it looks at them, but
they are the system's cache of that file, which it takes back when others need the room; nobody runs out of
memory by them. Anonymous memory cannot be taken back. So three figures are printed: the most of
that (RssAnon, sampled every 20 ms), the most mapped pages (RssFile, the same way), and the largest resident
set that the kernel itself noted (ru_maxrss), in which both are. The promise is about the last. That the first
stays below the limit is not only observed: the process forbids itself more (RLIMIT_DATA), so it would fail.
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
    """The most of each kind of resident memory since it was started, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = {"RssAnon": 0, "RssFile": 0}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self.most:
                    self.most[name] = max(self.most[name], 1024 * int(value.split()[0]))

    def stop(self) -> None:
        self._done.set()
        self.join()


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{what:42} {time.monotonic() - started:8.1f} s", flush=True)


def random_preferences(pairs: int, steps: int, observation: int, action: int) -> Iterator[Preference]:
    """Pairs of segments of random numbers; the first is better where its first observations are larger."""
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=60, help="of a segment")
    parser.add_argument(
        "--observation", type=int, default=348, help="numbers in an observation (Humanoid-v5)"
    )
    parser.add_argument("--action", type=int, default=17, help="numbers in an action (Humanoid-v5)")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--limit", type=float, default=4.0, help="GiB of memory")
    parser.add_argument("--saved", action="store_true", help="save, load and fit from that; twice the disk")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TMPDIR", "/var/tmp")  # noqa: S108
    size = 8 * given.pairs * ((given.steps + 1) * given.observation + given.steps * given.action)
    needed, free = 1.25 * size * (2 if given.saved else 1), shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free:
        parser.error(
            f"need {needed / 1e9:.1f} GB in {tempfile.gettempdir()}, got {free / 1e9:.1f}: set TMPDIR"
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
        predictor = RewardPredictor(
            observation_space, action_space, RewardConfig(members=given.members), seed=1
        )
        with timed("fitting: statistics, an epoch, evaluation"):
            report = predictor.fit(dataset, max_epochs=1)
    memory.stop()

    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\n{given.pairs} pairs, {size / 1e9:.2f} GB, {report.updates} updates, loss {report.loss:.3f}")
    for name, value in {**memory.most, "ru_maxrss": peak}.items():
        print(f"{name:10} {value / GIB:6.2f} GiB   {value / limit:5.0%} of the limit")
    print(f"dataset : peak resident memory = {size / peak:.1f} : 1")
    if peak > limit:
        raise SystemExit("more than the limit")


if __name__ == "__main__":
    main()

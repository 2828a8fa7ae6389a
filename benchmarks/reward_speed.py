"""Benchmark of the speed of reward learning against the imitation library: fits, relabeling and whole runs.

Both sides use the same data and one thread, and take turns; imitation runs in its own Python and reports its
times over a pipe. Prints medians over the rounds, and the median and range of the ratios.

    fit      500 pairs of 50 Hopper steps, 10 epochs, batches of 32 pairs, an ensemble of 3 with 64-64 units
    relabel  cost of predicted rewards per environment step, with 8 environments: imitation's wrapper computes
             them at every step, ours in one call per rollout of 256 steps
    steps    Pendulum, 50,000 steps: time of a run on 200 labels relative to a run on the true reward
    run      Pendulum, 100,000 steps: time of a run on 200 labels; returns are in benchmarks/teaching.jsonl

Fits and relabeling are timed in CPU seconds, which other programs affect less. Runs are timed in CPU and
wall-clock seconds.

    python -m benchmarks.reward_speed --imitation PYTHON
    python -m benchmarks.reward_speed --imitation PYTHON --part fit relabel --rounds 9
    python -m benchmarks.reward_speed --part steps                                        ours only
    python -m benchmarks.reward_speed --part fit steps --options "reward.stride=3"        ours with options
"""

import argparse
import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402

from benchmarks.imitation_client import Imitation  # noqa: E402
from benchmarks.teaching_points import Point  # noqa: E402
from benchmarks.teaching_run import built  # noqa: E402
from teacher.data.preferences import Preference, PreferenceDataset  # noqa: E402
from teacher.data.segment_pool import SegmentPool  # noqa: E402
from teacher.data.segments import Segment, SegmentPair  # noqa: E402
from teacher.envs.random_episodes import random_trajectories  # noqa: E402
from teacher.envs.tasks import TaskInfo, describe_task  # noqa: E402
from teacher.reward.predictor import RewardPredictor  # noqa: E402
from teacher.training.loop import train  # noqa: E402

FIT_TASK, PAIRS, HELD_OUT_PAIRS, LENGTH = "teacher/Hopper-v1", 500, 250, 50
EPOCHS, BATCH, MEMBERS = 10, 32, 3
NUM_ENVS, NUM_STEPS, CALLS = 8, 256, 20
RUN_TASK, LABELS = "Pendulum", 200
STEPS = {"steps": 50_000, "run": 100_000}
ROUNDS = {"fit": 5, "relabel": 9, "steps": 3, "run": 3}
_KINDS = ("", ", CPU")
RATIOS = {
    "fit": [("imitation", "ours")],
    "relabel": [("imitation", "ours")],
    "steps": [
        (f"{side}, synth{kind}", f"{side}, rl{kind}") for side in ("ours", "imitation") for kind in _KINDS
    ],
    "run": [(f"imitation, synth{kind}", f"ours, synth{kind}") for kind in _KINDS],
}

Seconds = Mapping[str, float]
"""Measurements of one round by name, in seconds except for accuracies."""


class Data:
    """Pairs of segments of random behavior, labeled by true return and shared by both sides."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.task: TaskInfo = describe_task(FIT_TASK)
        pool = SegmentPool(LENGTH, capacity=10**9, seed=seed)
        for trajectory in random_trajectories(self.task, seed):
            pool.extend([trajectory])
            if len(pool) >= 2 * (PAIRS + HELD_OUT_PAIRS):
                break
        pairs = pool.sample_pairs(PAIRS + HELD_OUT_PAIRS)
        self.pairs, self.held_out = pairs[:PAIRS], pairs[PAIRS:]
        self.path = folder / "pairs.npz"
        np.savez(self.path, **_arrays("train", self.pairs), **_arrays("held_out", self.held_out))

    def dataset(self) -> PreferenceDataset:
        """Return the training pairs as a preference dataset."""
        dataset = PreferenceDataset()
        dataset.upsert(
            Preference(uuid.uuid5(uuid.NAMESPACE_URL, str(index)), *pair, _value(pair))
            for index, pair in enumerate(self.pairs)
        )
        return dataset


def _value(pair: SegmentPair) -> float:
    return float(pair[0].true_return > pair[1].true_return)


def _arrays(part: str, pairs: Sequence[SegmentPair]) -> dict[str, Any]:
    def stack(part_of: Callable[[Segment], Any]) -> Any:
        return np.array([[part_of(segment) for segment in pair] for pair in pairs], np.float32)

    return {
        f"{part}_observations": stack(lambda segment: segment.observations),
        f"{part}_actions": stack(lambda segment: segment.actions),
        f"{part}_rewards": stack(lambda segment: segment.true_rewards),
        f"{part}_values": np.array([_value(pair) for pair in pairs], np.float32),
    }


@dataclass
class Bench:
    """Measures both sides; each public method is one part of the benchmark.

    Attributes:
        folder: where temporary files go.
        imitation: client for imitation, or None to measure only our side.
        options: ``teach`` options for our side when it learns from labels.
    """

    folder: Path
    imitation: Imitation | None
    options: str = ""

    def __post_init__(self) -> None:
        self._data: Data | None = None

    @property
    def data(self) -> Data:
        """Pairs to fit to, created on first use."""
        if self._data is None:
            self._data = Data(self.folder)
        return self._data

    def fit(self, seed: int) -> Seconds:
        """Time a fit; also return held-out accuracies, to check that both sides have learned."""
        predictor, dataset = self._predictor(seed), self.data.dataset()
        ours = _cpu_seconds(partial(predictor.fit, dataset, max_epochs=EPOCHS))
        first, second = (predictor.segment_returns(each) for each in zip(*self.data.held_out, strict=True))
        right = (first > second) == [_value(pair) > 0.5 for pair in self.data.held_out]
        found = {"ours": ours, "ours, accuracy": float(np.mean(right))}
        if self.imitation is not None:
            settings = {"members": MEMBERS, "epochs": EPOCHS, "batch_size": BATCH, "seed": seed}
            answer = self.imitation.ask("fit", data=str(self.data.path), **settings)
            found |= {"imitation": answer["seconds"], "imitation, accuracy": answer["accuracy"]}
        return found

    def relabel(self, seed: int) -> Seconds:
        """Time the reward prediction per step of one environment."""
        rng, task = np.random.default_rng(seed), describe_task(FIT_TASK)
        sizes = [(space.shape or ())[0] for space in (task.observation_space, task.action_space)]
        observations, actions, following = (
            rng.normal(size=(NUM_STEPS, NUM_ENVS, size)).astype(np.float32) for size in (*sizes, sizes[0])
        )
        steps = NUM_STEPS * NUM_ENVS
        rewards = partial(self._predictor(seed).rewards, observations, actions, following)
        found = {"ours": _cpu_seconds(lambda: [rewards() for _ in range(CALLS)]) / (CALLS * steps)}
        if self.imitation is not None:
            settings = {"members": MEMBERS, "num_envs": NUM_ENVS, "num_steps": NUM_STEPS}
            answer = self.imitation.ask("relabel", sizes=sizes, **settings)
            found["imitation"] = answer["seconds"] / steps
        return found

    def _predictor(self, seed: int) -> RewardPredictor:
        task = describe_task(FIT_TASK)
        given = Point(RUN_TASK, "networks", LABELS, 1, seed, self.options).config(str(self.folder)).reward
        # "auto" would fit twice and choose.
        features = "plain" if given.features == "auto" else given.features
        config = replace(given, members=MEMBERS, batch_size=BATCH, features=features)
        return RewardPredictor(task.observation_space, task.action_space, config, seed, "cpu")

    def steps(self, seed: int) -> Seconds:
        """Time runs on the true reward and on labels."""
        return self._runs("steps", seed, {"rl": 0, "synth": LABELS})

    def run(self, seed: int) -> Seconds:
        """Time a run on labels."""
        return self._runs("run", seed, {"synth": LABELS})

    def _runs(self, part: str, seed: int, kinds: Mapping[str, int]) -> Seconds:
        found, steps = dict[str, float](), STEPS[part]
        for kind, labels in kinds.items():
            point = Point(RUN_TASK, "networks" if labels else "rl", labels, steps, seed, self.options)
            times = {"ours": _train_ours(point)}
            if self.imitation is not None:
                times["imitation"] = self.imitation.train("Pendulum-v1", steps, labels, seed)
            for side, one in times.items():
                found |= {f"{side}, {kind}": one["seconds"], f"{side}, {kind}, CPU": one["cpu_seconds"]}
        return found


def _cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _train_ours(point: Point) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, built(point, folder) as run:
        started = time.monotonic()
        worked = _cpu_seconds(partial(train, run))
        return {"seconds": time.monotonic() - started, "cpu_seconds": worked}


def measure(bench: Bench, part: str, rounds: int) -> list[Seconds]:
    """Measure one part in several rounds with different seeds; short parts have a warm-up round first."""
    work: Callable[[int], Seconds] = getattr(bench, part)
    if part in ("fit", "relabel"):
        work(0)
    return [
        work(seed) for seed in track(range(1, rounds + 1), part, console=Console(stderr=True), transient=True)
    ]


def report(part: str, rounds: Sequence[Seconds]) -> Iterator[str]:
    """Yield Markdown table rows: the median and range of each measurement, and of the ratios."""
    for name in rounds[0]:
        unit, scale = ("µs", 1e6) if part == "relabel" else ("%", 100) if "accuracy" in name else ("s", 1)
        yield f"| {part} | {name} | {_spread([scale * found[name] for found in rounds])} {unit} |"
    for over, under in RATIOS[part]:
        if over in rounds[0] and under in rounds[0]:
            ratios = [found[over] / found[under] for found in rounds]
            yield f"| {part} | {over} / {under} | **{_spread(ratios)}** |"


def _spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    """Measure each part and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reward_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", nargs="+", choices=ROUNDS, default=ROUNDS)
    parser.add_argument("--rounds", type=int, help="number of rounds (default: by part)")
    parser.add_argument(
        "--options", default="", help="for our side, such as 'reward.stride=3 reward.patience=50'"
    )
    parser.add_argument(
        "--imitation", metavar="PYTHON", help="Python interpreter that has imitation installed"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        errors = stack.enter_context((folder / "errors.txt").open("wb"))
        imitation = stack.enter_context(Imitation(options.imitation, errors)) if options.imitation else None
        bench = Bench(folder, imitation, options.options)
        print("| part | what | median (range) |\n|---|---|---|")
        for part in options.part:
            print(*report(part, measure(bench, part, options.rounds or ROUNDS[part])), sep="\n", flush=True)


if __name__ == "__main__":
    main()

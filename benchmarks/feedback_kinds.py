"""Benchmark of the kinds of questions: how much a predictor learns from an answer, and from a clip watched.

Predictors are fitted to answers about segments of random behavior, and ranked by Spearman's correlation of
predicted and true returns of other segments. Judges perceive a segment's return with Gumbel noise, whose
standard deviation is ``noise`` times that of the returns. A drifting judge adds a slow sine wave of one
standard deviation to what it perceives, alike for all clips of a question, with a period of 50 questions.

    python -m benchmarks.feedback_kinds --show        print the stored results
    python -m benchmarks.feedback_kinds               make all missing fits, minutes on one core
"""

import argparse
import contextlib
import itertools
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from agents.numerics.correlation import rank_correlation
from benchmarks.results import append, load
from teacher.data.ledger import Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import ScriptedTeacher
from teacher.queries.kinds import KINDS
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import KindName, RewardConfig
from teacher.settings.teachers import ErrorModel, Perceived

RESULTS = Path(__file__).with_suffix(".jsonl")
TASKS: Mapping[str, tuple[str, int]] = {  # environment ID and steps per segment
    "Pendulum": ("Pendulum-v1", 25),
    "Reacher": ("teacher/Reacher-v1", 15),
    "Hopper": ("teacher/ShortHopper-v1", 15),
    "Cheetah": ("teacher/ShortCheetah-v1", 25),
}
ANSWERS = (25, 50, 100, 200)
NOISE = (0.25, 0.75)
SEGMENTS, HELD_OUT = 900, 500
_GUMBEL_STD = math.pi / math.sqrt(6)
_PERIOD = 50  # questions


class DriftingTeacher(ScriptedTeacher):
    """Scripted teacher whose standard drifts: what it sees of all clips of a question rises and falls.

    Args:
        amplitude: of the sine wave, on the scale of returns.
    """

    def __init__(self, error_model: ErrorModel, seed: int, amplitude: float) -> None:
        super().__init__(error_model, seed)
        self._amplitude = amplitude
        self._questions = 0

    def perceive(self, items: Sequence[Segment]) -> Perceived | None:
        """Return the drifting view of a question's segments."""
        seen = super().perceive(items)
        offset = self._amplitude * math.sin(2 * math.pi * self._questions / _PERIOD)
        self._questions += 1
        if seen is None:
            return None
        return replace(seen, returns=[each + offset for each in seen.returns])


@dataclass(frozen=True)
class Fit:
    """One fit; its fields identify a line of the results file."""

    task: str
    kind: KindName
    answers: int
    noise: float
    drift: bool
    seed: int


def fits(seeds: Sequence[int]) -> Iterator[Fit]:
    """Yield all fits, ordered by seed."""
    for seed, task, noise, drift in itertools.product(seeds, TASKS, NOISE, (False, True)):
        for kind, answers in itertools.product(KINDS.values(), ANSWERS):
            yield Fit(task, kind.name, answers, noise, drift, seed)


@cache
def segments_of(task: str, seed: int) -> tuple[list[Segment], list[Segment]]:
    """Return segments of random behavior to ask about, and others to measure on."""
    env_id, length = TASKS[task]
    pool = SegmentPool(length, capacity=10**9, seed=seed)
    for trajectory in random_trajectories(describe_task(env_id), seed):
        pool.extend([trajectory])
        if len(pool) >= SEGMENTS + HELD_OUT:
            break
    found = list(pool.segments)
    return found[:SEGMENTS], found[SEGMENTS : SEGMENTS + HELD_OUT]


def measure(fit: Fit) -> dict[str, float]:
    """Ask, fit and return the correlation on held-out segments."""
    asked, held_out = segments_of(fit.task, fit.seed)
    true = np.array([segment.true_return for segment in held_out])
    std = float(np.std([segment.true_return for segment in asked]))
    error_model = ErrorModel(noisy=fit.noise * std / _GUMBEL_STD)
    teacher = DriftingTeacher(error_model, fit.seed, std if fit.drift else 0.0)
    pool = SegmentPool(TASKS[fit.task][1], capacity=10**9, seed=fit.seed)
    pool.add(asked)
    kind, dataset = KINDS[fit.kind], PreferenceDataset()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Ledger(Path(folder) / "ledger.sqlite3")) as ledger,
    ):
        collector = SyntheticTeacher(ledger, fit.seed, teacher)
        collector.submit(kind.select(pool, fit.answers, None, None), "training", 0, kind.name)
        dataset.upsert(collector.receive())
    task = describe_task(TASKS[fit.task][0])
    predictor = RewardPredictor(task.observation_space, task.action_space, RewardConfig(), fit.seed)
    predictor.fit(dataset)
    return {"correlation": round(rank_correlation(predictor.segment_returns(held_out), true), 4)}


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the mean correlation over the seeds, by task and judge."""
    found = defaultdict[tuple[Any, ...], list[float]](list)
    for each in results:
        key = each["task"], each["noise"], each["drift"], each["kind"], each["answers"]
        found[key].append(each["correlation"])
    table = Table("task", "noise", "drift", "kind", *map(str, ANSWERS))
    for task, noise, drift, kind in itertools.product(TASKS, NOISE, (False, True), KINDS):
        cells = [found[task, noise, drift, kind, answers] for answers in ANSWERS]
        shown = [f"{np.mean(cell):.3f}" if cell else "" for cell in cells]
        drifts = "yes" if drift else ""
        table.add_row(task, str(noise), drifts, kind, *shown, end_section=kind == "best_worst")
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing fits and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.feedback_kinds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 9))
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument("--show", action="store_true", help="print the stored results without making fits")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = load(options.results)
    made = {Fit(**{name: each[name] for name in Fit.__dataclass_fields__}) for each in results}
    if not options.show:
        for fit in fits(options.seeds):
            if fit not in made:
                append(options.results, {**asdict(fit), **measure(fit)})
    print_table(load(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

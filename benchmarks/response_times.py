"""Benchmark of response times: whether fast answers to pairs should count more than slow ones.

A simulated labeler accumulates evidence until it reaches a threshold (drift-diffusion model: Ratcliff, 1978).
The more two segments differ, the faster and the more often right its answers are. The noise of its choices is
that of ``benchmarks.feedback_kinds``. People's times also depend on other things, so decision times are
multiplied by log-normal noise, whose standard deviation (of the logarithm) is ``spread``.

The ways to use the times: not at all; as weights, which fall with the rank of the time from 2 to 0; as softer
preferences, 0.98, 0.9 and 0.7 for the fastest, middle and slowest third; the same with shuffled times, which
shows what softness alone does; and as the share of right answers in the tenth of times that an answer belongs
to, which only a simulation knows.

    python -m benchmarks.response_times --show        print the stored results
    python -m benchmarks.response_times               make all missing fits, minutes on one core
"""

import argparse
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from agents.numerics.correlation import rank_correlation
from benchmarks.feedback_kinds import ANSWERS, NOISE, TASKS, segments_of
from benchmarks.results import append, load
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.envs.tasks import describe_task
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

RESULTS = Path(__file__).with_suffix(".jsonl")
SPREADS = (0.0, 0.5)
WAYS = ("none", "shuffled", "weights", "softer", "known shares")
_TIMELESS = ("none", "shuffled")
_GUMBEL_STD = math.pi / math.sqrt(6)
_STEP, _LONGEST = 0.01, 12.0  # of a simulated decision, in units in which threshold and diffusion are 1
_SHARES = (0.98, 0.9, 0.7)
_TRIALS = 20_000


@dataclass(frozen=True)
class Fit:
    """One fit; its fields identify a line of the results file."""

    task: str
    way: str
    answers: int
    noise: float
    spread: float
    seed: int


def fits(seeds: Sequence[int]) -> Iterator[Fit]:
    """Yield all fits, ordered by seed; without the times, their spread doesn't matter."""
    for seed, task, noise, spread in itertools.product(seeds, TASKS, NOISE, SPREADS):
        for way, answers in itertools.product(WAYS, ANSWERS):
            if way not in _TIMELESS or spread == 0:
                yield Fit(task, way, answers, noise, spread, seed)


def decide(drifts: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Simulate decisions between the thresholds 1 and -1.

    Returns:
        Whether each decision is at the threshold 1, and its time.
    """
    evidence, times = np.zeros(len(drifts)), np.full(len(drifts), _LONGEST)
    running = np.ones(len(drifts), bool)
    for step in range(1, round(_LONGEST / _STEP) + 1):
        noise = rng.normal(size=int(running.sum())) * math.sqrt(_STEP)
        evidence[running] += drifts[running] * _STEP + noise
        ended = running & (np.abs(evidence) >= 1)
        times[ended] = step * _STEP
        running &= ~ended
        if not running.any():
            break
    return evidence > 0, times


def targets(
    way: str, first: np.ndarray, times: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each preference's value and weight.

    Args:
        first: whether the first segment was chosen.
        shares: share of right answers at the time of each answer.
    """
    ranks = np.argsort(np.argsort(times, kind="stable"), kind="stable") / max(1, len(times) - 1)
    certain, weights = np.ones(len(times)), np.ones(len(times))
    if way == "weights":
        weights = np.maximum(2 * (1 - ranks), 0.01)
    elif way in {"softer", "shuffled"}:
        certain = np.array(_SHARES)[np.minimum(2, (3 * ranks).astype(int))]
    elif way == "known shares":
        certain = shares
    return np.where(first, certain, 1 - certain), weights


def measure(fit: Fit) -> dict[str, float]:
    """Ask, fit and return the correlation on held-out segments."""
    asked, held_out = segments_of(fit.task, fit.seed)
    returns = np.array([segment.true_return for segment in asked])
    rng = np.random.default_rng(fit.seed)
    temperature = fit.noise * float(returns.std()) / _GUMBEL_STD
    pairs = rng.permutation(len(asked))[: 2 * max(ANSWERS)].reshape(-1, 2)[: fit.answers]
    first, times = answers_to((returns[pairs[:, 0]] - returns[pairs[:, 1]]) / (2 * temperature), fit, rng)
    if fit.way == "shuffled":
        times = np.random.default_rng(fit.seed).permutation(times)
    trials = rng.choice(len(asked), (_TRIALS, 2))
    drifts = (returns[trials[:, 0]] - returns[trials[:, 1]]) / (2 * temperature)
    tried, tried_times = answers_to(drifts, fit, rng)
    edges = np.quantile(tried_times, np.linspace(0, 1, 11)[1:-1])
    right, place = tried == (drifts > 0), np.searchsorted(edges, tried_times)
    by_tenth = np.array([right[place == tenth].mean() for tenth in range(10)])
    shares = np.clip(by_tenth[np.searchsorted(edges, times)], 0.5, 0.99)
    values, weights = targets(fit.way, first, times, shares)
    dataset = PreferenceDataset()
    dataset.upsert(
        Preference(UUID(int=at + 1), asked[one], asked[other], float(value), float(weight))
        for at, ((one, other), value, weight) in enumerate(zip(pairs, values, weights, strict=True))
    )
    task = describe_task(TASKS[fit.task][0])
    predictor = RewardPredictor(task.observation_space, task.action_space, RewardConfig(), fit.seed)
    predictor.fit(dataset)
    true = np.array([segment.true_return for segment in held_out])
    return {"correlation": round(rank_correlation(predictor.segment_returns(held_out), true), 4)}


def answers_to(drifts: np.ndarray, fit: Fit, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a labeler's choices and times."""
    first, times = decide(drifts, rng)
    return first, times * np.exp(rng.normal(scale=fit.spread, size=len(times)))


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the mean correlation over tasks and seeds, with the standard error of the gain by the times."""
    found = defaultdict[tuple[Any, ...], dict[tuple[Any, ...], float]](dict)
    for each in results:
        key = each["noise"], each["spread"], each["way"], each["answers"]
        found[key][each["task"], each["seed"]] = each["correlation"]
    table = Table("noise", "spread", "times used as", *map(str, ANSWERS))
    for noise, spread, way in itertools.product(NOISE, SPREADS, WAYS):
        cells = []
        for answers in ANSWERS:
            own = found[noise, 0.0 if way in _TIMELESS else spread, way, answers]
            plain = found[noise, 0.0, "none", answers]
            gains = [own[each] - plain[each] for each in own.keys() & plain.keys()]
            error = np.std(gains, ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
            shown = f"{np.mean(list(own.values())):.3f}" if own else ""
            cells.append(shown if way == "none" else f"{shown} ({np.mean(gains):+.3f} ± {error:.3f})")
        table.add_row(str(noise), str(spread), way, *cells, end_section=way == WAYS[-1])
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing fits and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.response_times",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=range(1, 6))
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument("--show", action="store_true", help="print the stored results without making fits")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = {Fit(**{name: each[name] for name in Fit.__dataclass_fields__}) for each in load(options.results)}
    if not options.show:
        for fit in fits(options.seeds):
            if fit not in made:
                append(options.results, {**asdict(fit), **measure(fit)})
    print_table(load(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Benchmark of learning from images alone: MovingDot trained on synthetic labels and on the true reward.

Records the true return of each episode during training and plays random actions for comparison. Prints the
mean return R over the last tenth of each run, and f = (R - R_random) / (R_rl - R_random). Runs that are
already in the results file are skipped.

    python -m benchmarks.moving_dot --results dot.jsonl --plot docs/pictures/moving-dot.png

A run takes 10 seconds (rl) to one minute (synth) of CPU time.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.results import Curve, append, curve_steps, load
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.envs.trajectory import Trajectory
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.training.builder import open_run
from teacher.training.loop import train

ENV_ID = "teacher/MovingDot-v1"
SIDES = ("rl", "synth")
N_LABELS, SEGMENT_STEPS = 100, 4
RANDOM_EPISODES = 100


def config_of(side: str, seed: int, steps: int, runs_dir: Path) -> TeachConfig:
    """Return the settings of a run; ``side`` is one of ``SIDES``."""
    true = TeachConfig(
        env_id=ENV_ID,
        predictor="rl",
        name=f"{side}-{seed}",
        seed=seed,
        num_timesteps=steps,
        no_videos=True,
        runs_dir=str(runs_dir),
    )
    if side == "rl":
        return true
    return replace(
        true,
        predictor="synth",
        n_labels=N_LABELS,
        segment_steps=SEGMENT_STEPS,
        pretrain_iters=100,
        reward=RewardConfig(stride=1, epochs=4),
    )


def run_side(side: str, seed: int, steps: int, runs_dir: Path) -> dict[str, Any]:
    """Train one run; return a results line with the mean true return in each twentieth of the run."""
    started, curve = time.process_time(), Curve(steps)
    with open_run(config_of(side, seed, steps, runs_dir), Console(quiet=True)) as run:
        remember = run.remember

        def note(trajectories: Sequence[Trajectory]) -> None:
            for episode in trajectories:
                if episode.finished:
                    curve.add(min(run.agent.total_steps, steps), episode.true_return)
            remember(trajectories)

        run.remember = note  # type: ignore[method-assign]
        train(run)
        labels = 0 if run.teaching is None else run.teaching.ledger.usable()
    seconds = round(time.process_time() - started, 1)
    return {
        "side": side,
        "seed": seed,
        "steps": steps,
        "labels": labels,
        "cpu": seconds,
        "returns": curve.means(),
    }


def random_return() -> float:
    """Return the mean true return of random actions."""
    episodes = islice(random_trajectories(describe_task(ENV_ID), seed=1), RANDOM_EPISODES)
    return float(np.mean([episode.true_return for episode in episodes]))


def last_tenth(result: dict[str, Any]) -> float:
    """Return the mean return over the last tenth of a run."""
    return float(np.mean([value for value in result["returns"][-2:] if value is not None]))


def print_table(results: Sequence[dict[str, Any]], by_chance: float) -> None:
    """Print each side's final returns, f and CPU time."""
    ends = {side: [last_tenth(result) for result in results if result["side"] == side] for side in SIDES}
    best = float(np.mean(ends["rl"]))
    table = Table("side", "labels", "return by seed", "mean", "f", "processor s")
    table.add_row("random actions", "", "", f"{by_chance:.1f}", "0", "")
    for side, values in ends.items():
        of_side = [result for result in results if result["side"] == side]
        share = (np.mean(values) - by_chance) / (best - by_chance)
        table.add_row(
            side,
            str(of_side[0]["labels"]),
            ", ".join(f"{value:.1f}" for value in values),
            f"{np.mean(values):.1f}",
            f"{share:.2f}",
            f"{np.mean([result['cpu'] for result in of_side]):.0f}",
        )
    Console(width=110).print(table)


def plot(results: Sequence[dict[str, Any]], by_chance: float, path: Path) -> None:
    """Plot true return against steps: a thin line per run and a thick line for each side's mean."""
    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 (after choosing the backend)

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=110)
    labels = {"rl": "true reward", "synth": f"{N_LABELS} synthetic labels"}
    for side, color in zip(SIDES, ("#4d4d4d", "#0b7285"), strict=True):
        of_side = [result for result in results if result["side"] == side]
        curves = np.array([result["returns"] for result in of_side], np.float64)
        seen = ~np.isnan(curves).all(axis=0)  # some points have no episodes
        curves, steps = curves[:, seen], curve_steps(of_side[0]["steps"])[seen]
        axes.plot(steps, curves.T, color=color, alpha=0.3, linewidth=1)
        axes.plot(steps, np.nanmean(curves, axis=0), color=color, linewidth=2.5, label=labels[side])
    axes.axhline(by_chance, color="#c92a2a", linestyle="--", linewidth=1.5, label="random actions")
    axes.set(xlabel="environment steps", ylabel="true return of an episode (40 at most)", ylim=(10, 40))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    """Make the missing runs, print the table, and draw the plot if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--results", type=Path, required=True, help="JSON Lines file of results")
    parser.add_argument("--plot", type=Path, help="save a plot of the returns to this file")
    given = parser.parse_args()
    done = {(result["side"], result["seed"]) for result in load(given.results)}
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            for side in given.sides:
                if (side, seed) not in done:
                    append(given.results, run_side(side, seed, given.steps, Path(folder)))
    results, by_chance = load(given.results), random_return()
    if {result["side"] for result in results} == set(SIDES):
        print_table(results, by_chance)
        if given.plot:
            plot(results, by_chance, given.plot)


if __name__ == "__main__":
    main()

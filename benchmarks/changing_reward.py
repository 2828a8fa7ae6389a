"""Benchmark of agents on rewards that change: is a low return the reward's fault, or the agent's?

``benchmarks.bpref --keep_predictors`` stores every reward predictor that a run on labels went through. Here,
agents train on them without asking anybody. Rewards are:

- ``true``: the true reward.
- ``last``: the stored run's last predictor, from the first step on.
- ``linear``, ``networks``, ``tanh``: a model fitted to all labels of the stored run, from the first step on;
  ``tanh`` is PEBBLE's network, three layers of 256 units and a tanh.
- ``sequence``: every stored predictor, from the step at which the stored run began to train on it.

A return on ``last`` far below that on ``true`` is the reward's fault. Lock-in is the return on ``sequence``
divided by that on ``last``: what is missing to 1 is the agent's fault, which does not unlearn. Returns are
true ones of the final deterministic policy over 20 episodes: interquartile means over the seeds.

    python -m benchmarks.bpref --side sac-ours --labels 500 --seeds 1 --keep_predictors
    python -m benchmarks.changing_reward --run runs/bpref/dm_control-walker-walk/sac-ours-oracle-500-250000-1
    python -m benchmarks.changing_reward --run ... --reward last sequence --agent resets layer-norm
    python -m benchmarks.changing_reward --env HalfCheetah-v5 --steps 1e5 --agent default layer-norm
    python -m benchmarks.changing_reward --show

Interrupted runs go on from their last checkpoint in ``--runs``; runs that are already in the results file are
skipped, and so are those that another process is making: start the same command twice to use two cores.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

from benchmarks.agent_variants import VARIANTS  # noqa: E402
from benchmarks.changing_reward_run import REWARDS, Job, make  # noqa: E402
from benchmarks.results import append, iqm, load  # noqa: E402
from teacher.errors import TeacherError  # noqa: E402
from teacher.files import locked_folder  # noqa: E402
from teacher.settings.arguments import INTERRUPTED, as_whole_number  # noqa: E402
from teacher.settings.saved_config import load_config  # noqa: E402

RESULTS = Path(__file__).with_suffix(".jsonl")
STEPS = 100_000

Result = Mapping[str, Any]


def selected(options: argparse.Namespace) -> list[tuple[Job, Path | None]]:
    """Return the runs that the command line selects, with the folders of the stored runs.

    Raises:
        ConfigError: a folder is not one of a run.
    """
    chosen = list[tuple[Job, Path | None]]()
    for folder, reward, agent in itertools.product(options.run, options.reward, options.agent):
        config, _ = load_config(folder)
        stored, source = (None, "") if reward == "true" else (folder.absolute(), str(config.name))
        for seed in options.seeds or [config.seed]:
            steps = options.steps or config.num_timesteps
            chosen.append((Job(config.env_id, source, reward, agent, steps, seed), stored))
    for env_id, agent, seed in itertools.product(options.env, options.agent, options.seeds or [1]):
        chosen.append((Job(env_id, "", "true", agent, options.steps or STEPS, seed), None))
    return chosen


def job_of(result: Result) -> Job:
    """Return the run that produced a line of the results file."""
    return Job(**{name: result[name] for name in Job.__dataclass_fields__})


def grouped(results: Sequence[Result]) -> dict[tuple[str, str, int, str, str], list[Result]]:
    """Group results by task, stored run, steps, reward and agent, in that order."""
    groups: dict[tuple[str, str, int, str, str], list[Result]] = {}
    for result in results:
        job = job_of(result)
        groups.setdefault((job.env_id, job.source, job.steps, job.reward, job.agent), []).append(result)
    rewards, agents = list(REWARDS), list(VARIANTS)
    return dict(
        sorted(groups.items(), key=lambda of: (*of[0][:3], rewards.index(of[0][3]), agents.index(of[0][4])))
    )


def score(results: Sequence[Result]) -> float:
    """Return the interquartile mean of the returns."""
    return float(iqm(np.array([result["return"] for result in results])))


def print_tables(results: Sequence[Result]) -> None:
    """Print a Markdown table for each task, stored run and number of steps."""
    groups, shown = grouped(results), None
    for (env_id, source, steps, reward, agent), group in groups.items():
        if shown != (env_id, source, steps):
            shown = env_id, source, steps
            print(f"\n{env_id}, {steps:,} steps{f', stored run {source}' if source else ''}\n")
            head = "| reward | agent | seeds | return | lock-in | returns while training | CPU h |"
            print(f"{head}\n|{'---|' * 7}")
        last = groups.get((env_id, source, steps, "last", agent), [])
        lock_in = f"{score(group) / score(last):.2f}" if reward == "sequence" and last else ""
        curve = np.array([result["curve"] for result in group], dtype=np.float64)[:, 3::4]
        means = ["" if np.isnan(part).all() else f"{np.nanmean(part):.0f}" for part in curve.T]
        hours = np.median([result["cpu_seconds"] for result in group]) / 3600
        cells = [REWARDS[reward], VARIANTS[agent].title, str(len(group)), f"{score(group):.0f}"]
        print("| " + " | ".join([*cells, lock_in, ", ".join(means), f"{hours:.2f}"]) + " |")


def build_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.changing_reward",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--run", nargs="+", type=Path, default=[], metavar="FOLDER", help="folders of stored runs")
    add("--env", nargs="+", default=[], metavar="ID", help="tasks to train in on the true reward only")
    add("--reward", nargs="+", choices=REWARDS, default=list(REWARDS), help="default: all")
    add("--agent", nargs="+", choices=VARIANTS, default=["default"], help=", ".join(VARIANTS))
    add("--steps", type=as_whole_number, help=f"default: the stored run's, or {STEPS:,} with --env")
    add("--seeds", nargs="+", type=int, help="default: the stored run's, or 1 with --env")
    add("--runs", type=Path, default=Path("runs/changing_reward"), help="default: runs/changing_reward")
    add("--results", type=Path, default=RESULTS, help="default: next to this script")
    add("--show", action="store_true", help="print the stored results without making runs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing runs, print the tables, and return the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        for job, stored in [] if options.show else selected(options):
            _make_once(job, stored, options)
    except TeacherError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the runs from their last checkpoints")
        return INTERRUPTED
    results = load(options.results)
    if not results:
        print(f"no results in {options.results}")
    print_tables(results)
    return 0


def _make_once(job: Job, stored: Path | None, options: argparse.Namespace) -> None:
    """Make a run unless it is in the results file, or another process is making it."""
    try:
        with locked_folder(job.folder(options.runs)):
            if job not in map(job_of, load(options.results)):
                append(options.results, make(job, stored, options.runs))
    except BlockingIOError:
        print(f"{job.folder(options.runs)}: another process is making this run")


if __name__ == "__main__":
    sys.exit(main())

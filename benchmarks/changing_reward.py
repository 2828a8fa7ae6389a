"""Benchmark of agents on rewards that change: is a low return the reward's fault, or the agent's?

``benchmarks.bpref --keep_predictors`` stores every reward predictor that a run on labels went through. Here,
agents train on them without asking anybody. Rewards are:

- ``true``: the true reward.
- ``last``: the stored run's last predictor, from the first step on.
- ``linear``, ``networks``, ``tanh``: a model fitted to all labels of the stored run, from the first step on;
  ``tanh`` is PEBBLE's network, three layers of 256 units and a tanh.
- ``sequence``: every stored predictor, from the step at which the stored run began to train on it.

Returns are true ones of the final deterministic policy over 20 episodes: interquartile means over the seeds.
With R_random that of random actions, f = (R - R_random) / (R_true - R_random): an f far below 1 on ``last``
is the reward's fault. Lock-in = (R_sequence - R_random) / (R_last - R_random): what is missing to 1 is the
agent's fault, which does not unlearn. The predicted return is that by the last predictor, in parentheses that
of the agent trained on the true reward: if it is higher, the agent has not found its own reward's maximum.

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
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

from benchmarks.agent_variants import VARIANTS  # noqa: E402
from benchmarks.changing_reward_run import REWARDS, Job, make, require_finished  # noqa: E402
from benchmarks.results import append, iqm, load  # noqa: E402
from teacher.errors import TeacherError  # noqa: E402
from teacher.files import locked_folder  # noqa: E402
from teacher.settings.arguments import INTERRUPTED, as_whole_number  # noqa: E402
from teacher.settings.config_files import load_config  # noqa: E402

RESULTS = Path(__file__).with_suffix(".jsonl")
STEPS = 100_000
COLUMNS = (
    *("stored run", "reward", "agent", "seeds", "return", "f", "lock-in", "predicted return"),
    *("returns while training", "CPU h"),
)

Result = Mapping[str, Any]


def selected(options: argparse.Namespace) -> list[tuple[Job, Path | None]]:
    """Return the runs that the command line selects, with the folders of the stored runs.

    Raises:
        TeacherError: a folder is not one of a finished run with its predictors.
    """
    chosen = list[tuple[Job, Path | None]]()
    for folder in options.run:
        config, _ = load_config(folder)
        require_finished(folder)
        steps, seeds = options.steps or config.num_timesteps, options.seeds or [config.seed]
        chosen += [(_random(config.env_id, seed), None) for seed in seeds]
        for seed, reward, agent in itertools.product(seeds, options.reward, options.agent):
            stored, source = (None, "") if reward == "true" else (folder.absolute(), str(config.name))
            chosen.append((Job(config.env_id, source, reward, agent, steps, seed), stored))
    for env_id, seed in itertools.product(options.env, options.seeds or [1]):
        chosen.append((_random(env_id, seed), None))
        for agent in options.agent:
            chosen.append((Job(env_id, "", "true", agent, options.steps or STEPS, seed), None))
    return chosen


def _random(env_id: str, seed: int) -> Job:
    return Job(env_id, "", "random", "default", 0, seed)


def job_of(result: Result) -> Job:
    """Return the run that produced a line of the results file."""
    return Job(**{name: result[name] for name in Job.__dataclass_fields__})


Key = tuple[str, int, str, str, str]
"""Task, steps, stored run, reward and agent."""


def grouped(results: Sequence[Result]) -> dict[Key, list[Result]]:
    """Group results by what :data:`Key` names, in that order."""
    groups: dict[Key, list[Result]] = {}
    for result in results:
        job = job_of(result)
        groups.setdefault((job.env_id, job.steps, job.source, job.reward, job.agent), []).append(result)
    rewards, agents = list(REWARDS), list(VARIANTS)
    order = sorted(groups, key=lambda key: (*key[:3], rewards.index(key[3]), agents.index(key[4])))
    return {key: groups[key] for key in order}


def score(results: Sequence[Result]) -> float:
    """Return the interquartile mean of the returns; NaN if there are none."""
    return float(iqm(np.array([result["return"] for result in results]))) if results else math.nan


def shares(groups: Mapping[Key, Sequence[Result]], key: Key) -> tuple[float, float]:
    """Return a row's f and, for a sequence, its lock-in; NaN for what is unknown."""
    env_id, steps, source, reward, agent = key
    random = score(groups.get((env_id, 0, "", "random", "default"), []))
    true = score(groups.get((env_id, steps, "", "true", agent), []))
    last = score(groups.get((env_id, steps, source, "last", agent), []))
    gained = score(groups[key]) - random
    return gained / (true - random), gained / (last - random) if reward == "sequence" else math.nan


def _predicted(results: Sequence[Result]) -> str:
    """Format the mean predicted return, and that of agents on the true reward if all are known."""
    cells = []
    for name, form in (("predicted_return", "{:.0f}"), ("predicted_return_of_true", "({:.0f})")):
        values = [result.get(name) for result in results]
        if None not in values:
            cells.append(form.format(np.mean(np.array(values, dtype=np.float64))))
    return " ".join(cells)


def print_tables(results: Sequence[Result]) -> None:
    """Print a Markdown table for each task and number of steps."""
    groups, shown = grouped(results), None
    for key, group in groups.items():
        env_id, steps, source, reward, agent = key
        if shown != (env_id, steps):
            shown = env_id, steps
            print(f"\n{env_id}, {steps:,} steps\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        known = ["" if math.isnan(share) else f"{share:.2f}" for share in shares(groups, key)]
        curve = np.array([result["curve"] for result in group], dtype=np.float64)[:, 3::4]
        means = ["" if np.isnan(part).all() else f"{np.nanmean(part):.1f}" for part in curve.T]
        hours = np.median([result["cpu_seconds"] for result in group]) / 3600
        cells = [source, REWARDS[reward], VARIANTS[agent].title * bool(steps), str(len(group))]
        cells += [f"{score(group):.1f}", *known, _predicted(group), ", ".join(means), f"{hours:.2f}"]
        print("| " + " | ".join(cells) + " |")


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
    add("--reward", nargs="+", choices=list(REWARDS)[1:], default=list(REWARDS)[1:], help="default: all")
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

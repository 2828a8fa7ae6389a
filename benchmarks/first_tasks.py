"""Benchmark of Gymnasium's own tasks, most of whose episodes end early: which way of handling that learns?

Every side trains the same agent with 200 labels from the oracle. Its final policy then plays 20 episodes of
the original task, which may end early, with deterministic actions. With R the mean of these returns over the
seeds,

    f = (R - R_random) / (R_rl - R_random)

where rl is the same agent on the true reward. The side that ``teach`` proposes for a task is marked ``*``.

    python -m benchmarks.first_tasks --show                     print the stored results
    python -m benchmarks.first_tasks                            make all missing runs, one after another
    python -m benchmarks.first_tasks --task Hopper-v5 --side absorb restart --seeds 1 2

Runs that are already in the results file are skipped. Box2D tasks need ``pip install gymnasium[box2d]``.
"""

import argparse
import itertools
import os
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.results import append, load  # noqa: E402
from benchmarks.teaching import describe_commit  # noqa: E402
from benchmarks.teaching_run import mean_return, versions  # noqa: E402
from teacher.envs.tasks import describe_task  # noqa: E402
from teacher.errors import TeacherError  # noqa: E402
from teacher.queries.kinds import preferences_in  # noqa: E402
from teacher.settings.arguments import INTERRUPTED  # noqa: E402
from teacher.settings.config import RunSettings  # noqa: E402
from teacher.teach import parse_arguments  # noqa: E402
from teacher.training.builder import build_run, prepared_directory  # noqa: E402
from teacher.training.loop import train  # noqa: E402
from teacher.training.start import check  # noqa: E402

RESULTS = Path(__file__).with_suffix(".jsonl")
LABELS = 200
SEEDS = (1, 2, 3)
EPISODES = 20
TASKS: Mapping[str, int] = {
    "CartPole-v1": 40_000,
    "LunarLanderContinuous-v3": 200_000,
    "InvertedPendulum-v5": 50_000,
    "Hopper-v5": 150_000,
    "BipedalWalker-v3": 200_000,
}
"""Environment steps per run by task."""
_UNTAUGHT = ("random", "rl")
SIDES: Mapping[str, str] = {
    "random": "",
    "rl": "-p rl",
    "variable": "--allow_variable_horizon",
    "absorb": "--fixed_horizon absorb",
    "restart": "--fixed_horizon restart",
    "unhealthy": "--env_kwargs terminate_when_unhealthy=false",
}
"""``teach`` options of each side."""
TITLES: Mapping[str, str] = {
    "random": "random actions",
    "rl": "true reward",
    "frozen": "absorb, whole tail",
    "unhealthy": "no termination",
}
_ONLY: Mapping[str, Sequence[str]] = {"unhealthy": ("Hopper-v5",)}
"""Tasks of the sides that not all tasks have."""


@dataclass(frozen=True)
class Job:
    """One run; its fields identify a line of the results file."""

    task: str
    side: str
    seed: int
    steps: int
    labels: int

    def command(self) -> str:
        """Return a command that repeats this run."""
        words = ["--task", self.task, "--side", self.side, "--seeds", str(self.seed)]
        return shlex.join(["python", "-m", "benchmarks.first_tasks", *words, "--results", "again.jsonl"])

    def options(self, runs_dir: str) -> list[str]:
        """Return the arguments of ``teach``."""
        words = ["-e", self.task, "-n", "run", "-s", str(self.seed), "-t", str(self.steps)]
        words += ["--runs_dir", runs_dir, "-V", *shlex.split(SIDES[self.side])]
        return words if self.side in _UNTAUGHT else [*words, "-p", "synth", "-l", str(self.labels)]


def jobs(tasks: Sequence[str], sides: Sequence[str], seeds: Sequence[int]) -> Iterator[Job]:
    """Yield the selected runs, ordered by seed."""
    for seed, task, side in itertools.product(seeds, tasks, sides):
        if task in _ONLY.get(side, (task,)):
            untaught = side in _UNTAUGHT
            yield Job(task, side, seed, 0 if side == "random" else TASKS[task], 0 if untaught else LABELS)


def make(job: Job) -> dict[str, Any]:
    """Make one run and return its measurements.

    Raises:
        TeacherError: ``teach`` refuses the run.
    """
    task = describe_task(job.task)
    if job.side == "random":
        return {"return": mean_return(task, job.seed, EPISODES, None), "versions": versions()}
    console = Console(quiet=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(parse_arguments(job.options(folder)).config, uuid.uuid4())
        plan = check(settings, console)
        started, ties = time.monotonic(), {}
        with prepared_directory(plan.settings), build_run(plan, console) as run:
            train(run)
            if run.teaching is not None:
                values = [preference.value for preference in preferences_in(run.teaching.ledger)]
                ties = {"ties": round(float(np.mean([value == 0.5 for value in values])), 3)}
            seconds = round(time.monotonic() - started, 1)
            found = mean_return(task, job.seed, EPISODES, partial(run.agent.act, deterministic=True))
    return {"return": found, **ties, "seconds": seconds, "versions": versions()}


def proposed(task: str) -> str | None:
    """Return the side that ``teach`` proposes for a task; None if it accepts the task as it is."""
    words = shlex.split(f"-p synth -e {task} -n run -l {LABELS} -t {TASKS[task]}")
    try:
        check(RunSettings(parse_arguments(words).config, uuid.uuid4()), Console(quiet=True))
    except TeacherError as error:
        said = str(error).rpartition("corrected: ")[2]
        return next((side for side, options in SIDES.items() if options and options in said), None)
    return None


def table(results: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Table:
    """Return a table of the mean return, its range over the seeds, f and the share of ties."""
    shown = Table("task", "side", "return (range), seeds", "f", "ties")
    for task in tasks:
        of_task = [result for result in results if result["task"] == task]
        sides = {
            side: [result["return"] for result in of_task if result["side"] == side]
            for side in [*SIDES, *TITLES]
        }
        means = {side: float(np.mean(returns)) for side, returns in sides.items() if returns}
        if not means:
            continue
        named = proposed(task)
        for side, mean in means.items():
            known = side not in _UNTAUGHT and set(_UNTAUGHT) <= means.keys()
            f = (mean - means["random"]) / (means["rl"] - means["random"]) if known else float("nan")
            ties = [result["ties"] for result in of_task if result["side"] == side and "ties" in result]
            spread = f"{mean:.0f} ({min(sides[side]):.0f} to {max(sides[side]):.0f}), {len(sides[side])}"
            title = TITLES.get(side, side) + (" *" if side == named else "")
            shown.add_row(
                task, title, spread, f"{f:.2f}" if known else "", f"{np.mean(ties):.0%}" if ties else ""
            )
        shown.add_section()
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing runs, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_tasks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument("--show", action="store_true", help="print the stored results without making runs")
    options = parser.parse_args(arguments)
    made = {Job(**{name: line[name] for name in Job.__dataclass_fields__}) for line in load(options.results)}
    wanted = [] if options.show else jobs(options.task, options.side, options.seeds)
    commit, failed = describe_commit(), 0
    try:
        for job in (job for job in wanted if job not in made):
            try:
                outcome = make(job)
            except TeacherError as error:
                failed += 1
                print(f"{job.task} {job.side}, seed {job.seed}: failed: {error}")
                continue
            append(options.results, {**asdict(job), **outcome, "commit": commit, "command": job.command()})
            print(f"{job.task} {job.side}, seed {job.seed}: {outcome['return']:.1f}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; finished runs are saved, and the same command continues")
        return INTERRUPTED
    Console().print(table(load(options.results), options.task))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

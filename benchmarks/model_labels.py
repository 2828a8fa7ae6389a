"""Benchmark of a model that labels, alone and beside people, with an endpoint that looks at the pictures.

Each run is ``teach -p human`` with a labeling site of its own. The model is :mod:`benchmarks.seeing_model`,
behind the protocol of OpenAI; it sees contact sheets alone. Scripted people see true returns and make no
mistakes. With deferral, the model may decide a share of 0.8, and can't tell if two clips look alike. With R
the return of the final policy,

    f = (R - R_random) / (R_rl - R_random)

where random and rl are the results of ``benchmarks/teaching.jsonl`` with the same steps. Actions are sampled.

    python -m benchmarks.model_labels --show      print the stored results
    python -m benchmarks.model_labels             make all missing runs, minutes each
"""

import argparse
import contextlib
import itertools
import os
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
from benchmarks.seeing_model import Eye, SeeingModel, pendulum, reacher, seeing  # noqa: E402
from benchmarks.teaching import RESULTS as TEACHING  # noqa: E402
from benchmarks.teaching import describe_commit  # noqa: E402
from benchmarks.teaching_run import EVALUATION_EPISODES, mean_return, versions  # noqa: E402
from teacher.envs.tasks import describe_task  # noqa: E402
from teacher.labeling.bots import Bot  # noqa: E402
from teacher.labeling.embedded_site import ensure_site  # noqa: E402
from teacher.labeling.endpoint import Endpoint  # noqa: E402
from teacher.labeling.model import ModelLabeler  # noqa: E402
from teacher.labeling.model_report import report  # noqa: E402
from teacher.settings.config import RunSettings  # noqa: E402
from teacher.settings.endpoint import EndpointSettings  # noqa: E402
from teacher.teach import parse_arguments  # noqa: E402
from teacher.training.builder import build_run, prepared_directory  # noqa: E402
from teacher.training.loop import train  # noqa: E402
from teacher.training.start import check  # noqa: E402

RESULTS = Path(__file__).with_suffix(".jsonl")
MODEL = "seeing"


@dataclass(frozen=True)
class Task:
    """A task: its steps, how its model sees, and the difference in score below which two clips look alike."""

    steps: int
    eye: Eye
    tie: float


TASKS: Mapping[str, Task] = {
    "Pendulum-v1": Task(100_000, pendulum, 0.3),
    "teacher/Reacher-v1": Task(500_000, reacher, 0.01),
}
LABELS = 50
SHARES: Mapping[str, float | None] = {"people": None, "model": 1.0, "mistakes": 1.0, "deferral": 0.8}
"""Sides, and the share of questions that the model may decide; None without a model."""
MISTAKES = 0.1


@dataclass(frozen=True)
class Job:
    """One run; its fields identify a line of the results file."""

    task: str
    side: str
    seed: int

    def options(self) -> list[str]:
        """Return the arguments of ``teach``, except where labels come from."""
        task = TASKS[self.task]
        words = ["-e", self.task, "-n", "run", "-s", str(self.seed), "-t", str(task.steps), "-V"]
        return [*words, "-l", str(LABELS)]


def make(job: Job) -> dict[str, Any]:
    """Make one run and return its measurements; without a model, people's labels need no site."""
    share = SHARES[job.side]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as parts:
        started, labelers = time.monotonic(), list[Bot]()
        words = ["-p", "synth"] if share is None else ["-p", "human", "--state_dir", f"{folder}/state"]
        words += ["--runs_dir", folder]
        settings = RunSettings(parse_arguments([*words, *job.options()]).config, uuid.uuid4())
        if share is not None:
            site = ensure_site(Path(folder) / "state")
            parts.callback(site.release)
            labelers = _labelers(job, share, (site.url, settings.config.experiment, site.token), parts)
        for labeler in labelers:
            labeler.start()
        plan = check(settings, Console(quiet=True))
        with prepared_directory(plan.settings), build_run(plan, Console(quiet=True)) as run:
            train(run)
            seconds = round(time.monotonic() - started, 1)
            act = partial(run.agent.act, deterministic=False)
            found = mean_return(describe_task(job.task), job.seed, EVALUATION_EPISODES, act)
        for labeler in labelers:
            labeler.join(60)
            if labeler.error is not None:
                raise labeler.error
        model, people = 0, 0 if labelers else LABELS
        lines: list[str] = []
        for labeler in labelers:
            if isinstance(labeler, ModelLabeler):
                model = labeler.answered
                lines = [*report(labeler.exported("comparisons"), labeler.exported("labels"), MODEL)]
            else:
                people = labeler.answered
        return {
            "return": round(found, 3),
            "people": people,
            "model": model,
            "report": lines,
            "seconds": seconds,
            "versions": versions(),
        }


def _labelers(job: Job, share: float, where: tuple[str, str, str], parts: contextlib.ExitStack) -> list[Bot]:
    """Return the labelers of a run: the model, and a scripted person if it may not decide everything."""
    task = TASKS[job.task]
    mistakes, tie = MISTAKES * (job.side == "mistakes"), task.tie * (job.side == "deferral")
    eyes = SeeingModel(task.eye, mistakes=mistakes, tie=tie)
    endpoint = Endpoint(EndpointSettings(url=parts.enter_context(seeing(eyes)), model=MODEL))
    log = Path(parts.enter_context(tempfile.TemporaryDirectory())) / "log"
    model = ModelLabeler(*where, endpoint, log, share=share)
    return [model] if share == 1 else [model, Bot(*where, "person")]


def anchors(task: str) -> tuple[float, float]:
    """Return the mean returns of random actions, and of training on the true reward."""
    name = task.removeprefix("teacher/").removesuffix("-v1")
    rows = [row for row in load(TEACHING) if row["task"] == name]
    means = [np.mean([row["return"] for row in rows if row["side"] == side]) for side in ("random", "rl")]
    return float(means[0]), float(means[1])


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the mean return, f and the answers by people and by the model."""
    shown = Table("task", "side", "return, seeds", "f", "people's answers", "model's answers")
    for task, side in itertools.product(TASKS, SHARES):
        rows = [row for row in results if (row["task"], row["side"]) == (task, side)]
        if rows:
            low, high = anchors(task)
            mean = float(np.mean([row["return"] for row in rows]))
            counts = [f"{np.mean([row[who] for row in rows]):.0f}" for who in ("people", "model")]
            returns = ", ".join(f"{row['return']:.4g}" for row in rows)
            shown.add_row(task, side, returns, f"{(mean - low) / (high - low):.2f}", *counts)
    return shown


def jobs(tasks: Sequence[str], sides: Sequence[str], seeds: Sequence[int]) -> Iterator[Job]:
    """Yield the selected runs, ordered by seed."""
    for seed, task, side in itertools.product(seeds, tasks, sides):
        yield Job(task, side, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing runs, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model_labels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--side", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: next to this script")
    parser.add_argument("--show", action="store_true", help="print the stored results without making runs")
    options = parser.parse_args(arguments)
    made = {Job(**{name: line[name] for name in Job.__dataclass_fields__}) for line in load(options.results)}
    commit = describe_commit()
    for job in () if options.show else jobs(options.task, options.side, options.seeds):
        if job not in made:
            outcome = make(job)
            append(options.results, {**asdict(job), **outcome, "commit": commit})
            print(f"{job.task} {job.side}, seed {job.seed}: {outcome['return']:.1f}", flush=True)
    Console().print(table(load(options.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Benchmark of preference-based RL under the protocol of B-Pref (Lee et al. 2021, arXiv 2111.03026).

Sides are SAC on the true reward, PEBBLE (``--preset bpref``), SAC with RL-Teacher's defaults and with
networks as reward models, and the same with PPO, but PEBBLE. A scripted teacher labels segments by their
true return, optionally with B-Pref's errors. The score of a side is the return of its final deterministic
policy, divided by that of the same agent trained on the true reward: interquartile means over the seeds
with 95 % bootstrap intervals (Agarwal et al. 2021).

    python -m benchmarks.bpref --show --plot bpref.png    print and plot the stored results
    python -m benchmarks.bpref --processes 2              make all missing runs, which takes days of CPU
    python -m benchmarks.bpref --full --device cuda       B-Pref's network sizes, on a GPU
    python -m benchmarks.bpref --env dm_control/cheetah-run --labels 100 --seeds 1 2 3
    python -m benchmarks.bpref --env my_walk:Walk-v0 --side ppo ppo-ours --labels 100 --results walk.jsonl

DMControl needs an environment of its own: ``pip install -e '.[dmc]'``. SAC has two layers of 256 units and
minibatches of 256; with ``--full``, 1,024 of each, as in B-Pref. Interrupted runs go on from their last
checkpoint in ``--runs``; runs that are already in the results file are skipped.
"""

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[_name] = "1"

import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.progress import track  # noqa: E402

from agents.errors import AgentError  # noqa: E402
from benchmarks.bpref_run import SIDES, TEACHERS, Job, make  # noqa: E402
from benchmarks.results import append, bootstrap, curve_steps, interval, iqm, load  # noqa: E402
from teacher.errors import TeacherError  # noqa: E402
from teacher.settings.arguments import INTERRUPTED, as_whole_number  # noqa: E402

RESULTS = Path(__file__).with_suffix(".jsonl")
LABELS: Mapping[str, tuple[int, ...]] = {
    "dm_control/walker-walk": (50, 100, 500, 1000),
    "dm_control/cheetah-run": (50, 100, 500, 1000),
    "dm_control/quadruped-walk": (50, 1000, 2000),
    "metaworld/button-press-v3": (10_000, 20_000),
    "metaworld/sweep-into-v3": (10_000, 20_000),
}
"""Label budgets by task: those of REED (50), QPA (100) and B-Pref."""
STEPS = 250_000
COLORS = dict(
    zip(SIDES, ("#555555", "#d9730d", "#1b6ac9", "#7fb2ec", "#999999", "#2a9d5c", "#b8a038"), strict=True)
)

Result = Mapping[str, Any]


def selected(options: argparse.Namespace) -> list[Job]:
    """Return all runs that the command line selects, ordered by seed."""
    jobs = []
    for seed, env_id, side in itertools.product(options.seeds, options.env, options.side):
        taught = SIDES[side].taught
        teachers = options.teacher if taught else [""]
        for teacher, labels in itertools.product(teachers, _budgets(options, env_id) if taught else [0]):
            jobs.append(Job(env_id, side, teacher, labels, options.steps, seed, options.full))
    return jobs


def _budgets(options: argparse.Namespace, env_id: str) -> Sequence[int]:
    return options.labels or LABELS.get(env_id, (200,))


def job_of(result: Result) -> Job:
    """Return the run that produced a line of the results file."""
    return Job(**{name: result[name] for name in Job.__dataclass_fields__})


def make_runs(jobs: Sequence[Job], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Make the runs in processes of their own; append each result to the file and yield it."""
    one = partial(
        make, runs_dir=options.runs, device=options.device, keeps_predictors=options.keep_predictors
    )
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(one, jobs):
            append(options.results, result)
            yield result


@dataclass(frozen=True)
class Row:
    """The runs of one side on one task, with all seeds.

    Attributes:
        job: any of the runs.
        results: lines of the results file, one per seed.
        reference: results of the same agent on the true reward; empty if there are none.
    """

    job: Job
    results: Sequence[Result]
    reference: Sequence[Result]

    @property
    def returns(self) -> NDArray[np.float64]:
        """Return the final policies' returns, ``(seeds,)``."""
        return np.array([result["return"] for result in self.results])

    @property
    def normalized(self) -> tuple[float, tuple[float, float]] | None:
        """Return the return divided by the reference's, with its interval.

        The bootstrap resamples the seeds of both independently. None without a reference, or if a return is
        negative.
        """
        against, rng = np.array([result["return"] for result in self.reference]), np.random.default_rng(0)
        if not self.reference or min(against.min(), self.returns.min()) <= 0:
            return None
        share = float(iqm(self.returns) / iqm(against))
        return share, interval(bootstrap(self.returns, rng) / bootstrap(against, rng))


def rows(results: Sequence[Result]) -> list[Row]:
    """Group results into rows, ordered by task, size, teacher, labels and side."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        job = job_of(result)
        key = job.env_id, job.full, job.steps, job.teacher, job.labels, list(SIDES).index(job.side)
        groups.setdefault(key, []).append(result)
    rewarded = {
        (row["env_id"], row["full"], row["steps"], SIDES[row["side"]].agent): group
        for group in groups.values()
        if not SIDES[(row := group[0])["side"]].taught
    }
    made = []
    for _, group in sorted(groups.items()):
        job = job_of(group[0])
        reference = rewarded.get((job.env_id, job.full, job.steps, SIDES[job.side].agent), [])
        made.append(Row(job, group, reference))
    return made


def as_markdown(row: Row) -> str:
    """Format a row as a line of a Markdown table."""
    low, high = interval(bootstrap(row.returns, np.random.default_rng(0)))
    share, several = row.normalized, len(row.results) > 1
    cells = [
        SIDES[row.job.side].title,
        row.job.teacher,
        f"{row.job.labels:,}" if row.job.labels else "",
        str(len(row.results)),
        f"{float(iqm(row.returns)):.0f}" + f" ({low:.0f} to {high:.0f})" * several,
        "" if share is None else f"{share[0]:.2f}" + f" ({share[1][0]:.2f} to {share[1][1]:.2f})" * several,
        ", ".join(f"{value:.0f}" for value in sorted(row.returns)),
        _cpu_hours(row),
    ]
    return "| " + " | ".join(cells) + " |"


def _cpu_hours(row: Row) -> str:
    """Return the median processor time of the runs without a GPU; empty if there are none."""
    seconds = [result["cpu_seconds"] for result in row.results if result["device"] == "cpu"]
    return f"{np.median(seconds) / 3600:.2f}" if seconds else ""


def print_tables(table: Sequence[Row]) -> None:
    """Print a Markdown table for each task, size of networks and length of runs."""
    head = "| side | teacher | labels | seeds | return, IQM | share of true reward | seeds' returns | CPU h |"
    shown = None
    for row in table:
        if shown != (row.job.env_id, row.job.full, row.job.steps):
            shown = row.job.env_id, row.job.full, row.job.steps
            size = "B-Pref's networks" if row.job.full else "256-256 networks"
            print(f"\n{row.job.env_id}, {row.job.steps:,} steps, {size}\n\n{head}\n|{'---|' * 8}")
        print(as_markdown(row))


def draw(table: Sequence[Row], path: Path) -> None:
    """Plot for each task and size the learning curves, and the final return against the number of labels."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    tasks = list(dict.fromkeys((row.job.env_id, row.job.full, row.job.steps) for row in table))
    size = (8.5, 2.6 * len(tasks) + 0.5)
    figure, panels = plt.subplots(len(tasks), 2, figsize=size, squeeze=False, layout="constrained")
    for task, (curves, budgets) in zip(tasks, panels, strict=True):
        group = [row for row in table if (row.job.env_id, row.job.full, row.job.steps) == task]
        group = [row for row in group if row.job.teacher in ("", "oracle")]
        most = {side: max(row.job.labels for row in group if row.job.side == side) for side in _sides(group)}
        for row in group:
            if row.job.labels == most[row.job.side]:
                draw_curve(curves, row)
        draw_budgets(budgets, group)
        curves.set_title(f"{task[0]}{', B-Pref networks' if task[1] else ''}", loc="left", fontsize=9.5)
        curves.set_ylabel("return per episode")
        curves.set_ylim(bottom=0)
    panels[-1][0].set_xlabel("environment steps")
    panels[-1][1].set_xlabel("labels of the oracle")
    named = {
        name: line
        for curves, _ in panels
        for line, name in zip(*curves.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside upper left", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)


def _sides(group: Sequence[Row]) -> list[str]:
    return [side for side in SIDES if any(row.job.side == side for row in group)]


def draw_curve(axes: Axes, row: Row) -> None:
    """Plot the IQM of the returns during training, with its interval."""
    at = curve_steps(row.job.steps)
    curves = np.array([result["curve"] for result in row.results], dtype=np.float64).T  # None becomes NaN
    known = ~np.isnan(curves).any(axis=1)
    low, high = np.quantile(bootstrap(curves[known], np.random.default_rng(0)), (0.025, 0.975), axis=0)
    color, labels = COLORS[row.job.side], f", {row.job.labels:,} labels" if row.job.labels else ""
    axes.fill_between(at[known], low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(at[known], iqm(curves[known]), color=color, label=SIDES[row.job.side].title + labels)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
    axes.grid(axis="y", alpha=0.25)


def draw_budgets(axes: Axes, group: Sequence[Row]) -> None:
    """Plot the final return of each side against its number of labels, with the true reward as lines."""
    for side in _sides(group):
        chosen = sorted((row for row in group if row.job.side == side), key=lambda row: row.job.labels)
        middle = np.array([float(iqm(row.returns)) for row in chosen])
        if not SIDES[side].taught:
            axes.axhline(middle[0], color=COLORS[side], linestyle="--", linewidth=1)
            continue
        bounds = np.array([interval(bootstrap(row.returns, np.random.default_rng(0))) for row in chosen])
        bars = np.abs(bounds.T - middle)
        axes.errorbar(
            [row.job.labels for row in chosen], middle, bars, color=COLORS[side], marker="o", capsize=2
        )
    labels = sorted({row.job.labels for row in group if row.job.labels})
    axes.set_xscale("log")
    axes.set_xticks(labels, [f"{count:,}" for count in labels])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)


def build_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bpref",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--env", nargs="+", default=list(LABELS)[:2], metavar="ID", help="default: walker-walk, cheetah-run")
    add("--side", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE", help=", ".join(SIDES))
    add("--teacher", nargs="+", choices=TEACHERS, default=["oracle"], help="default: oracle")
    add("--labels", nargs="+", type=int, help="label budgets (default: by task, else 200)")
    add(
        "--steps", type=as_whole_number, default=STEPS, help=f"environment steps per run (default: {STEPS:,})"
    )
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--full", action="store_true", help="B-Pref's networks and minibatches, for a GPU")
    add("--device", default="cpu", help="torch device")
    add("--processes", type=int, default=1)
    add("--runs", type=Path, default=Path("runs/bpref"), help="folder of the runs (default: runs/bpref)")
    add("--keep_predictors", action="store_true", help="keep each predictor of a run in its folder")
    add("--results", type=Path, default=RESULTS, help="default: next to this script")
    add("--show", action="store_true", help="print the stored results without making runs")
    add("--plot", type=Path, help="save a plot of the results to this file")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing runs, print the tables, draw the plot if asked for, and return the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    results = load(options.results)
    made = {job_of(result) for result in results}
    jobs = [] if options.show else [job for job in selected(options) if job not in made]
    try:
        for job in (job for job in jobs if not job.folder(options.runs).exists()):
            job.config(options.runs, options.device)
        for result in track(make_runs(jobs, options), "runs", total=len(jobs), transient=True):
            results.append(result)
    except (TeacherError, AgentError) as error:
        parser.error(f"{error} (leave out sides that don't fit with --side)")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the runs from their last checkpoints")
        return INTERRUPTED
    table = rows(results)
    if not table:
        print(f"no results in {options.results}")
    print_tables(table)
    if options.plot and table:
        draw(table, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

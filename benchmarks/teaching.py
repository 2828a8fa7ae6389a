"""Benchmark of label efficiency: how many labels teaching takes on each task, by scripted teacher and option.

Every side trains for the same number of steps on a task; its final policy then plays 50 episodes with sampled
actions. With R the interquartile mean of these returns over the seeds,

    f = (R - R_random) / (R_rl - R_random)

where rl is the same agent on the true reward. "f, area" uses the mean return during training in place of the
final one. Parentheses contain 95 % bootstrap intervals. Accuracy is the share of held-out pairs of segments
that the predictor orders correctly, by quartile of the difference in true return.

    python -m benchmarks.teaching --show                          print the stored results
    python -m benchmarks.teaching --processes 2                   make all missing runs, many hours
    python -m benchmarks.teaching --task Hopper --side rl oracle --labels 350 --seeds 1 2 --results new.jsonl
    python -m benchmarks.teaching --task Reacher --variant "five: reward.members=5"

A variant is the oracle with different ``teach`` options. Runs that are already in the results file are
skipped. An interrupted run starts over.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.results import append, load
from benchmarks.teaching_plots import draw
from benchmarks.teaching_points import (
    SIDES,
    STANDARD_TASKS,
    TASKS,
    Point,
    Selection,
    line_of,
    parse_variant,
    point_of,
)
from benchmarks.teaching_report import print_tables, rows
from teacher.errors import ConfigError
from teacher.settings.arguments import INTERRUPTED

RESULTS = Path(__file__).with_suffix(".jsonl")
ROOT = Path(__file__).parents[1]
_POLL_SECONDS = 0.1


class Attempt:
    """A run in a child process with one thread of arithmetic.

    Args:
        point: the run to make.
        folder: temporary folder for everything that the run writes.
        imitation: Python interpreter that has imitation installed; only needed for its runs.
    """

    def __init__(self, point: Point, folder: Path, imitation: str | None) -> None:
        self.point = point
        self._errors = folder / f"{uuid.uuid4()}.txt"
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.teaching_run", json.dumps(asdict(point))),
                    *([imitation] if imitation else []),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **single, "TMPDIR": str(folder)},
                start_new_session=True,  # so that stop() also kills its children
            )

    @property
    def over(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def outcome(self) -> dict[str, Any] | str:
        """Return the run's measurements, or an error message if it failed."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else f"the run ended with exit status {self._process.returncode}"
        outcome: dict[str, Any] = json.loads(output.splitlines()[-1])
        return outcome

    def stop(self) -> None:
        """Kill the process and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def attempts(points: Sequence[Point], processes: int, imitation: str | None) -> Iterator[Attempt]:
    """Make runs in parallel and yield each when it ends; closing the generator kills unfinished runs."""
    waiting, running = list(points), list[Attempt]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    running.append(Attempt(waiting.pop(0), Path(folder), imitation))
                time.sleep(_POLL_SECONDS)
                for attempt in [attempt for attempt in running if attempt.over]:
                    running.remove(attempt)
                    yield attempt
        finally:
            for attempt in running:
                attempt.stop()


def make_runs(points: Sequence[Point], options: argparse.Namespace) -> int:
    """Make the runs, append their results to the results file, and return the number of failures."""
    failed, commit = 0, describe_commit()
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not points) as bar:
        task = bar.add_task("", total=len(points))
        for attempt in attempts(points, options.processes, options.imitation):
            outcome, point = attempt.outcome(), attempt.point
            if isinstance(outcome, str):
                failed += 1
                told = f"[red]failed: {outcome}[/]"
            else:
                append(options.results, line_of(point, {**outcome, "commit": commit}))
                told = f"{outcome['return']:.1f} after {outcome.get('seconds', 0):.0f} s"
            labels = f" {point.labels}" if point.labels else ""
            bar.console.print(f"{point.task} {point.side}{labels}, seed {point.seed}: {told}", soft_wrap=True)
            bar.console.print(f"  {point.command()}", style="dim", highlight=False, soft_wrap=True)
            bar.advance(task)
    return failed


def describe_commit() -> str:
    """Return the commit, with ``-dirty`` if files have changed; empty outside a Git repository."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def build_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.teaching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    standard = f"by default {', '.join(STANDARD_TASKS)} are run and all are shown"
    add("--task", nargs="+", choices=TASKS, metavar="TASK", help=f"{', '.join(TASKS)}; {standard}")
    add("--side", nargs="+", choices=SIDES, metavar="SIDE", help=", ".join(SIDES))
    add("--variant", action="append", default=[], type=_variant, metavar="'NAME: OPTION=VALUE ...'")
    add("--labels", nargs="+", type=int, default=(), help="label budgets (default: by task)")
    add(
        "--seeds",
        nargs="+",
        type=int,
        default=(),
        help="default: 1 to 8 on Pendulum and Reacher, else 1 to 5",
    )
    add("--steps", type=float, help="environment steps per run (default: by task)")
    add("--processes", type=int, default=2)
    add("--results", type=Path, default=RESULTS, help="default: next to this script")
    add(
        "--imitation",
        metavar="PYTHON",
        help="Python that has imitation installed; otherwise imitation's runs are skipped",
    )
    add("--show", action="store_true", help="print the stored results without making runs")
    add("--plot", type=Path, metavar="FOLDER", help="save plots of the results to this folder")
    return parser


def _variant(text: str) -> tuple[str, Any]:
    try:
        return parse_variant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def select(options: argparse.Namespace) -> list[Point]:
    """Return all runs that the command line selects.

    Raises:
        ConfigError: a side's options are invalid for ``teach``.
    """
    chosen = options.side or [name for name in SIDES if options.imitation or name != "imitation"]
    if options.variant and not options.side:
        chosen = []
    selection = Selection(
        tasks=options.task or STANDARD_TASKS,
        sides={name: SIDES[name] for name in chosen} | dict(options.variant),
        labels=options.labels,
        seeds=options.seeds,
        steps=None if options.steps is None else int(options.steps),
    )
    points = list(selection.points())
    for point in {(point.side, point.labels): point for point in points if point.is_ours}.values():
        point.config("runs")
    return points


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the missing runs, print the tables, draw plots if asked for, and return the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if "imitation" in (options.side or ()) and not options.imitation:
        parser.error("--side imitation requires --imitation PYTHON")
    made = {point_of(result) for result in load(options.results)}
    try:
        missing = [] if options.show else [point for point in select(options) if point not in made]
        failed = make_runs(missing, options)
    except ConfigError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; finished runs are saved, and the same command continues")
        return INTERRUPTED
    table = [row for row in rows(load(options.results)) if row.task in (options.task or TASKS)]
    print_tables(table)
    if options.plot:
        print(*draw(table, options.plot))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Load test of the site: against Label Studio, with a million comparisons, over time, and for correctness.

``python -m benchmarks.site_load --label-studio /path/of/its/venv/bin/python`` has simulated labelers fetch
and answer pairs over HTTP as fast as they can. Our site runs as in production (gunicorn, clip URLs signed for
S3), Label Studio on uWSGI with its recommended settings, each with its own database on one PostgreSQL. The
sides take turns. Label Studio needs a separate environment: ``pip install label-studio uwsgi``.

``--part scale`` compares 10,000 comparisons with 1,000,000 that have 3,000,000 labels. ``--part crowd`` has
64 labelers label all of 10,000 comparisons at overlap 1 and 3, and checks every label. ``--part long`` runs
200 labelers for ten minutes. ``--part sqlite`` runs 20 labelers on SQLite.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.load_report import failures, ratio, table
from benchmarks.load_servers import Machine, Side, run
from benchmarks.load_turns import Turn, quantile, statements, take_turn

OURS, THEIRS = "RL-Teacher", "Label Studio"
TASKS = 10_000
_MAX_SECONDS = 3600.0  # a part that takes longer has failed


def compare(machine: Machine, options: argparse.Namespace) -> None:
    """Compare our site with Label Studio; measure only ours if Label Studio isn't given."""
    most = max(options.labelers)
    # Our side is faster and would run out of comparisons with the same number.
    sides = [machine.teacher(OURS, str(5 * options.comparisons), str(most))]
    if options.label_studio is not None:
        sides.append(machine.label_studio(options.label_studio, options.comparisons, most))
    turns = take_turns(machine, sides, options)
    for side in sides:  # after the turns, so that connections are open
        counts = statements(machine, side)
        print(f"{side.name}: {counts['next']:.0f} statements for a next, {counts['save']:.0f} for a save")
    for labelers in options.labelers if len(sides) > 1 else ():
        faster, later, cost = (
            ratio(turns, figure, OURS, THEIRS, labelers)
            for figure in ("labels/s", "next p95, ms", "CPU, ms a label")
        )
        print(
            f"{labelers} labelers: {faster:.1f} times the labels/s (wanted: 10), next p95 1/{1 / later:.1f} "
            f"(wanted: 1/5), CPU time per label 1/{1 / cost:.1f}"
        )


def scale(machine: Machine, options: argparse.Namespace) -> None:
    """Compare a site with few comparisons and one with many, with the same share of them labeled."""
    most = str(max(options.labelers))
    few = machine.teacher("few", str(options.comparisons), most, "--history")
    many = machine.teacher("many", str(options.many), most, "--history")
    turns = take_turns(machine, [few, many], options)
    for labelers in options.labelers:
        for figure in ("next p95, ms", "save p95, ms", "CPU, ms a label"):
            times = ratio(turns, figure, "many", "few", labelers)
            print(f"{labelers} labelers: {figure} {times:.2f} times that of few (wanted: at most 1.5)")


def take_turns(machine: Machine, sides: Sequence[Side], options: argparse.Namespace) -> list[Turn]:
    """Warm up each side with a short turn, measure all sides in turn, and print the table."""
    for side in sides:
        take_turn(machine, side, max(options.labelers), min(3.0, options.seconds))
    turns = [
        take_turn(machine, side, labelers, options.seconds)
        for _ in range(options.rounds)
        for labelers in options.labelers
        for side in sides
    ]
    print(table(turns), *failures(turns), sep="\n")
    return turns


def crowd(machine: Machine, options: argparse.Namespace) -> None:
    """Have many labelers label all comparisons at each overlap, and check every label."""
    for overlap in options.overlaps:
        fill = (str(options.comparisons), str(options.crowd), str(overlap))
        side = machine.teacher(f"overlap {overlap}", *fill)
        turn = _use_up(machine, side, options.crowd, overlap * options.comparisons)
        found = checked(side)
        verdict = "correct" if is_right(found, overlap) else "WRONG"
        print(table([turn]), *failures([turn]), f"{found}: {verdict}", sep="\n")


def sqlite(machine: Machine, options: argparse.Namespace) -> None:
    """Measure the site on SQLite."""
    labelers = max(options.labelers)
    side = machine.teacher("SQLite", str(options.comparisons), str(labelers), "1", sqlite=True)
    turn = take_turn(machine, side, labelers, options.seconds)
    twice = sum(count > 1 for count in turn.tally.pairs.values())
    print(table([turn]), *failures([turn]), f"pairs served twice: {twice}; {checked(side)}", sep="\n")


def long(machine: Machine, options: argparse.Namespace) -> None:
    """Measure many labelers over a long time: the spread of their answers, and failures."""
    side = machine.teacher("long", str(options.many), str(options.long_labelers))
    turn = take_turn(machine, side, options.long_labelers, options.long_seconds)
    answers = [turn.tally.saved[place] for place in range(options.long_labelers)]
    spread = ", ".join(f"{quantile(answers, share):.0f}" for share in (0.0, 0.05, 0.5, 0.95, 1.0))
    print(table([turn]), *failures([turn]), sep="\n")
    print(f"answers per labeler (min, 5 %, median, 95 %, max): {spread}; empty responses {turn.tally.empty}")


def _use_up(machine: Machine, side: Side, labelers: int, wanted: int) -> Turn:
    return take_turn(machine, side, labelers, _MAX_SECONDS, lambda tally: tally.labels >= wanted)


def checked(side: Side) -> Mapping[str, int]:
    """Return the counts of ``benchmarks.load_rows check`` for a side."""
    found: Mapping[str, int] = run([sys.executable, "-m", "benchmarks.load_rows", "check"], side.environment)
    return found


def is_right(found: Mapping[str, int], overlap: int) -> bool:
    """Return True if each comparison has ``overlap`` labels from different labelers, all in the feed."""
    wrong = (
        "with other labels than wanted",
        "miscounted",
        "judged twice by a labeler",
        "missing in the feed",
    )
    return not any(found[name] for name in wrong) and found["counted"] == overlap * found["comparisons"]


PARTS: Mapping[str, Callable[[Machine, argparse.Namespace], None]] = {
    "compare": compare,
    "scale": scale,
    "crowd": crowd,
    "long": long,
    "sqlite": sqlite,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Start PostgreSQL and run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", choices=PARTS, default="compare")
    parser.add_argument("--label-studio", type=Path, metavar="PYTHON", help="Python with Label Studio")
    parser.add_argument("--labelers", type=int, nargs="+", default=[8, 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of a turn")
    parser.add_argument("--comparisons", type=int, default=TASKS)
    parser.add_argument("--many", type=int, default=1_000_000, help="comparisons in scale and long")
    parser.add_argument("--crowd", type=int, default=64, help="labelers in crowd")
    parser.add_argument("--overlaps", type=int, nargs="+", default=[1, 3], help="overlaps in crowd")
    parser.add_argument("--long-labelers", type=int, default=200)
    parser.add_argument("--long-seconds", type=float, default=600.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are stopped
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder) / "machine") as machine:
        PARTS[options.part](machine, options)


if __name__ == "__main__":
    main()

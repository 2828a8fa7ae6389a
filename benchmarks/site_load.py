"""How many labelers does the site bear: beside Label Studio, with a million pairs, for long, without error?

``python -m benchmarks.site_load --label-studio /path/of/its/venv/bin/python`` has labelers who do not think
fetch and answer pairs over HTTP: our site as in production (gunicorn, links to clips signed for S3), Label
Studio on uWSGI with the settings of its makers, each with a database of its own on one PostgreSQL. The sides
take turns. Label Studio wants an environment of its own: ``pip install label-studio uwsgi``.

``--part scale`` compares 10,000 comparisons with 1,000,000 that have 3,000,000 labels; ``--part crowd`` has
64 labelers use up 10,000 at overlap 1 and 3 and checks every label; ``--part long`` keeps 200 of them busy
for ten minutes; ``--part sqlite`` has 20 of them on SQLite.
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
_FOR_EVER = 3600.0  # a part that takes longer has failed


def compare(machine: Machine, options: argparse.Namespace) -> None:
    """Both sides in turn; without Label Studio, ours alone."""
    most = max(options.labelers)
    # Ours would run out of as many as they have.
    sides = [machine.teacher(OURS, str(5 * options.comparisons), str(most))]
    if options.label_studio is not None:
        sides.append(machine.label_studio(options.label_studio, options.comparisons, most))
    turns = take_turns(machine, sides, options)
    for side in sides:  # now that connections are open
        counts = statements(machine, side)
        print(f"{side.name}: {counts['next']:.0f} statements for a next, {counts['save']:.0f} for a save")
    for labelers in options.labelers if len(sides) > 1 else ():
        faster, later, cost = (
            ratio(turns, figure, OURS, THEIRS, labelers)
            for figure in ("labels/s", "next p95, ms", "CPU, ms a label")
        )
        print(
            f"{labelers} labelers: {faster:.1f} times the labels/s (wanted: 10), next p95 1/{1 / later:.1f} "
            f"(wanted: 1/5), processor time a label 1/{1 / cost:.1f}"
        )


def scale(machine: Machine, options: argparse.Namespace) -> None:
    """The same share of comparisons judged, of few and of many."""
    most = str(max(options.labelers))
    few = machine.teacher("few", str(options.comparisons), most, "--history")
    many = machine.teacher("many", str(options.many), most, "--history")
    turns = take_turns(machine, [few, many], options)
    for labelers in options.labelers:
        for figure in ("next p95, ms", "save p95, ms", "CPU, ms a label"):
            times = ratio(turns, figure, "many", "few", labelers)
            print(f"{labelers} labelers: {figure} {times:.2f} times that of few (wanted: 1.5 at most)")


def take_turns(machine: Machine, sides: Sequence[Side], options: argparse.Namespace) -> list[Turn]:
    """Some rounds of all sides, after one short turn of each; prints the table."""
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
    """Use everything up at each overlap, and check every label."""
    for overlap in options.overlaps:
        fill = (str(options.comparisons), str(options.crowd), str(overlap))
        side = machine.teacher(f"overlap {overlap}", *fill)
        turn = _use_up(machine, side, options.crowd, overlap * options.comparisons)
        found = checked(side)
        verdict = "as it must be" if is_right(found, overlap) else "WRONG"
        print(table([turn]), *failures([turn]), f"{found}: {verdict}", sep="\n")


def sqlite(machine: Machine, options: argparse.Namespace) -> None:
    """Twenty labelers on SQLite."""
    labelers = max(options.labelers)
    side = machine.teacher("SQLite", str(options.comparisons), str(labelers), "1", sqlite=True)
    turn = take_turn(machine, side, labelers, options.seconds)
    twice = sum(count > 1 for count in turn.tally.pairs.values())
    print(table([turn]), *failures([turn]), f"pairs handed out twice: {twice}; {checked(side)}", sep="\n")


def long(machine: Machine, options: argparse.Namespace) -> None:
    """Many labelers for a long time: how evenly they are served, and what goes wrong."""
    side = machine.teacher("long", str(options.many), str(options.long_labelers))
    turn = take_turn(machine, side, options.long_labelers, options.long_seconds)
    answers = [turn.tally.saved[place] for place in range(options.long_labelers)]
    spread = ", ".join(f"{quantile(answers, share):.0f}" for share in (0.0, 0.05, 0.5, 0.95, 1.0))
    print(table([turn]), *failures([turn]), sep="\n")
    print(f"answers of a labeler, least, 5 %, median, 95 %, most: {spread}; empty-handed {turn.tally.empty}")


def _use_up(machine: Machine, side: Side, labelers: int, wanted: int) -> Turn:
    return take_turn(machine, side, labelers, _FOR_EVER, lambda tally: tally.labels >= wanted)


def checked(side: Side) -> Mapping[str, int]:
    """What became of the comparisons of a side."""
    found: Mapping[str, int] = run([sys.executable, "-m", "benchmarks.load_rows", "check"], side.environment)
    return found


def is_right(found: Mapping[str, int], overlap: int) -> bool:
    """Whether each comparison has its labels, no two by one labeler, and the feed tells of all."""
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
    """Measure one part and print what it says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", choices=PARTS, default="compare")
    parser.add_argument("--label-studio", type=Path, metavar="PYTHON", help="of an environment that has it")
    parser.add_argument("--labelers", type=int, nargs="+", default=[8, 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each turn")
    parser.add_argument("--comparisons", type=int, default=TASKS)
    parser.add_argument("--many", type=int, default=1_000_000, help="comparisons of scale and long")
    parser.add_argument("--crowd", type=int, default=64, help="labelers of crowd")
    parser.add_argument("--overlaps", type=int, nargs="+", default=[1, 3], help="of crowd")
    parser.add_argument("--long-labelers", type=int, default=200)
    parser.add_argument("--long-seconds", type=float, default=600.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends, too
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder) / "machine") as machine:
        PARTS[options.part](machine, options)


if __name__ == "__main__":
    main()

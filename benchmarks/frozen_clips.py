"""Count the questions of runs that have a clip without motion.

    teach -p synth -e ShortHopper-v1 -n flip --teacher teacher.behaviors:backflip -l 100 -t 1e5 --no_videos
    python -m benchmarks.frozen_clips ~/.local/state/rl-teacher/runs/ShortHopper-v1/flip

A clip is without motion if query selection leaves it out; segments are compared with those of the run's
questions, instead of those in its pool.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.queries.motion import moving


def frozen(run: Path) -> tuple[int, int]:
    """Return how many of a run's answered questions have a clip without motion, and how many there are."""
    ledger = Ledger(run / LEDGER_NAME, read_only=True)
    questions = [each.items for each in ledger.answered()]
    items = list(dict.fromkeys(item for question in questions for item in question))
    moves = dict(zip(items, moving(items).tolist(), strict=True))
    return sum(not all(map(moves.__getitem__, question)) for question in questions), len(questions)


def main(runs: Sequence[str]) -> None:
    """Print the count of each run."""
    for run in runs:
        count, of = frozen(Path(run))
        print(f"{run}: {count} of {of} questions have a clip without motion")


if __name__ == "__main__":
    main(sys.argv[1:])

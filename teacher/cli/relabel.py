"""``teach relabel PREDICTOR TRAJECTORIES COPY``: copy trajectories with a predictor's rewards."""

from collections.abc import Sequence
from pathlib import Path

from teacher.files import require_new
from teacher.settings.arguments import PREDICTOR, OneLineParser, report_errors


def main(arguments: Sequence[str]) -> int:
    """Run ``teach relabel`` and return the exit status."""
    parser = OneLineParser(
        prog="teach relabel",
        description="Copy trajectories, replacing the recorded rewards with a predictor's.",
        epilog="example: teach relabel reward.npz ~/.minari/datasets/hopper/medium-v0 hopper-taught-v0",
    )
    parser.add_argument("predictor", type=Path, help=PREDICTOR)
    parser.add_argument(
        "trajectories", type=Path, help="demonstration file (.npz), or folder written by imitation or Minari"
    )
    parser.add_argument("copy", type=Path, help="file or folder to write, in the same format as the input")
    given = parser.parse_args(arguments)

    def work() -> None:
        require_new(given.copy)
        from teacher.datasets.predictor_files import load_predictor  # noqa: PLC0415 - torch takes a second
        from teacher.datasets.trajectories import relabel  # noqa: PLC0415

        relabel(load_predictor(given.predictor), given.trajectories, given.copy)
        print(f"{given.copy}: {given.trajectories} with rewards from {given.predictor}")

    return report_errors(parser, work)

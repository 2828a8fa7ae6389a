"""``teach export RUN FILE``: write a run's labels and predictor to files."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from teacher.errors import ConfigError, pluralize
from teacher.files import require_folder, require_new
from teacher.settings.arguments import OneLineParser, report_errors
from teacher.settings.saved_config import load_config


def main(arguments: Sequence[str]) -> int:
    """Run ``teach export`` and return the exit status."""
    parser = OneLineParser(
        prog="teach export",
        description="Write a run's labels, its reward predictor, or both to files.",
        epilog="example: teach export runs/ShortHopper-v1/backflip labels.npz --predictor reward.npz",
    )
    parser.add_argument("run", type=Path, help="run directory, such as runs/ShortHopper-v1/backflip")
    parser.add_argument(
        "labels",
        type=Path,
        nargs="?",
        help="file for the labels (.npz or .parquet), or folder for a Hugging Face dataset",
    )
    parser.add_argument(
        "--clips", action="store_true", help="also render and include the clips of all pairs (not for .npz)"
    )
    parser.add_argument(
        "--predictor", type=Path, metavar="FILE", help="write the predictor to this .npz file"
    )
    given = parser.parse_args(arguments)

    def work() -> None:
        if given.labels is None and given.predictor is None:
            raise ConfigError("nothing to export; pass a file for the labels, or --predictor FILE")
        if given.predictor is not None and given.predictor.suffix != ".npz":
            raise ConfigError(f"the predictor file must be named *.npz, not {given.predictor}")
        if given.predictor is not None:
            require_folder(given.predictor)
            require_new(given.predictor)
            if given.predictor == given.labels:
                raise ConfigError(f"labels and predictor can't both be written to {given.labels}")
        load_config(given.run)
        from teacher.datasets.predictor_files import save_predictor  # noqa: PLC0415
        from teacher.training.export import export_preferences  # noqa: PLC0415 - torch takes a second
        from teacher.training.saved_run import SavedRun  # noqa: PLC0415

        if given.predictor is not None:
            run = SavedRun(given.run)
            predictor = run.load_predictor()  # fails before anything is written if there is no predictor
        if given.labels is not None:
            count = export_preferences(
                given.run, given.labels, clips=given.clips, console=Console(soft_wrap=True)
            )
            print(f"{given.labels}: {pluralize(count, 'preference')}")
        if given.predictor is not None:
            spaces = run.task.observation_space, run.task.action_space
            save_predictor(given.predictor, predictor, *spaces, new=True)
            print(f"{given.predictor}: reward predictor of {given.run}")

    return report_errors(parser, work)

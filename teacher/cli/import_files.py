"""``teach import SOURCE FILE``: convert trajectories or labels from imitation, Minari or Uni-RLHF."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from teacher.errors import ConfigError, pluralize
from teacher.files import require_new
from teacher.settings.arguments import OneLineParser, report_errors


def main(arguments: Sequence[str]) -> int:
    """Run ``teach import`` and return the exit status."""
    parser = OneLineParser(
        prog="teach import",
        description="Convert files from other projects: imitation or Minari trajectories to demonstrations "
        "for teach --demonstrations, or Uni-RLHF labels to preferences for teach fit.",
        epilog="example: teach import ~/.minari/datasets/hopper/expert-v0 expert.npz",
    )
    parser.add_argument(
        "source",
        type=Path,
        help="folder written by imitation, Minari or Uni-RLHF, or .npz file written by imitation",
    )
    parser.add_argument("file", type=Path, help="file to write: .npz; preferences can also be .parquet")
    group = parser.add_argument_group("Uni-RLHF labels")
    group.add_argument(
        "--trajectories",
        type=Path,
        metavar="TABLE",
        help="D4RL dataset (.hdf5 or .npz) that the labels refer to; required for Uni-RLHF labels",
    )
    group.add_argument("--env_id", help="environment ID to write to the file (default: the labels' own)")
    given = parser.parse_args(arguments)
    return report_errors(parser, lambda: print(f"{given.file}: {_import(given)}"))


def _import(given: argparse.Namespace) -> str:
    require_new(given.file)
    from teacher.data.demonstrations import save_demonstrations  # noqa: PLC0415 - torch takes a second
    from teacher.datasets.preference_files import save_preferences, space_of  # noqa: PLC0415
    from teacher.datasets.trajectories import as_demonstrations, load_trajectories  # noqa: PLC0415
    from teacher.datasets.unirlhf import crowd_preferences, is_crowd_labels, load_crowd_labels  # noqa: PLC0415

    if not is_crowd_labels(given.source):
        demonstrations = as_demonstrations(load_trajectories(given.source))
        save_demonstrations(given.file, demonstrations, new=True)
        return demonstrations.summary()
    if given.trajectories is None:
        raise ConfigError(
            "--trajectories is missing; set it to the D4RL dataset that the labels in "
            f"{given.source} refer to"
        )
    dataset = crowd_preferences(load_crowd_labels(given.source), given.trajectories, given.env_id)
    spaces = (
        space_of({"kind": "Box", "shape": array.shape[3:], "dtype": str(array.dtype)})
        for array in (dataset.observations, dataset.actions)
    )
    save_preferences(given.file, dataset, *spaces, new=True)
    return f"{pluralize(len(dataset), 'preference')} on {dataset.env_id}"

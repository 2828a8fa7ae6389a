"""Write the labels of a run, with the segments they are about, into a file for other programs.

``python -m teacher.export runs/ShortHopper-v1/backflip labels.npz`` (or ``.parquet``)
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from teacher.arguments import INTERRUPTED, OneLineParser
from teacher.assembly import LEDGER_NAME
from teacher.config import load_config
from teacher.envs.tasks import task_of
from teacher.errors import DataError, TeacherError
from teacher.ledger import Ledger
from teacher.preference_files import save_preferences
from teacher.preferences import PreferenceDataset


def export_preferences(run_dir: Path, path: Path) -> int:
    """Write all preferences of a run as :func:`save_preferences` does; how many there are.

    Raises:
        ConfigError: the folder is no run's, or the file has another ending.
        DataError: the run has no labels, or they are damaged.
        EnvironmentUnsuitableError: its environment is not registered here.
        StorageError: the file cannot be written.
    """
    config, _ = load_config(run_dir)
    task = task_of(config)
    if not (run_dir / LEDGER_NAME).exists():
        raise DataError(f"{run_dir} has no labels; expected a run with -p synth or -p human")
    dataset = PreferenceDataset()
    with contextlib.closing(Ledger(run_dir / LEDGER_NAME, hard_labels=config.hard_labels)) as ledger:
        dataset.upsert(ledger.targets())
    save_preferences(path, dataset, task.observation_space, task.action_space)
    return len(dataset)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = OneLineParser(prog="python -m teacher.export", description=__doc__.split("\n", 1)[0])
    parser.add_argument("run_dir", type=Path, help="such as runs/ShortHopper-v1/backflip")
    parser.add_argument("file", type=Path, help="the .npz or .parquet file to write")
    given = parser.parse_args(arguments)
    try:
        count = export_preferences(given.run_dir, given.file)
    except TeacherError as error:
        print(f"export: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"export: interrupted; {given.file} was not written", file=sys.stderr)
        return INTERRUPTED
    print(f"{given.file}: {count} preferences")
    return 0


if __name__ == "__main__":
    sys.exit(main())

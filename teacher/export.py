"""Take what a run learned from people or for them elsewhere: its labels, its predictor.

``teach export runs/ShortHopper-v1/backflip labels.npz`` (or ``.parquet``, or a folder for Hugging Face)
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

from rich.console import Console

from teacher.arguments import OneLineParser, report_errors
from teacher.clips import ClipJob, ClipRenderer, Shot
from teacher.dataset_card import FILE_NAME, check_folder, write_card
from teacher.errors import ConfigError, counted
from teacher.files import require_folder, require_new
from teacher.metrics import progress
from teacher.parquet import SIDES, Clips
from teacher.predictor_files import save_predictor
from teacher.preference_files import require_room_for_clips, save_preferences
from teacher.saved_run import SavedRun

_CLIP_SIZE = 200  # pixels; a viewer shows them small


def export_preferences(
    run_dir: str | Path, path: str | Path, *, clips: bool = False, console: Console | None = None
) -> int:
    """Write all preferences of a run as :func:`save_preferences` does; how many there are.

    Args:
        run_dir: the run's folder.
        path: a new ``.npz`` or ``.parquet`` file, or a folder, which becomes a dataset for Hugging Face: new,
            or that of an earlier export, which is written again.
        clips: film all segments, and put the films beside them.
        console: shows how far filming is.

    Raises:
        ConfigError: the folder is no run's, or the file exists or has another ending, or the dataset's folder
            holds something else.
        DataError: the run has no labels, or they are damaged.
        EnvironmentUnsuitableError: its environment is not registered here.
        RenderError, ReplayMismatchError: a segment cannot be filmed.
        StorageError: the file cannot be written.
    """
    run, path = SavedRun(Path(run_dir)), Path(path)
    dataset = run.load_preferences()
    is_folder = not path.suffix
    if is_folder:
        check_folder(path)
    else:
        require_folder(path)
        require_new(path)
    file = path / FILE_NAME if is_folder else path
    if clips:  # before they are made
        require_room_for_clips(file)
    spaces = run.task.observation_space, run.task.action_space
    with contextlib.ExitStack() as parts:
        films = parts.enter_context(_filmed(run, console or Console(quiet=True))) if clips else None
        save_preferences(file, dataset, *spaces, clips=films)
    if is_folder:
        write_card(path, dataset, _question(run), with_clips=clips)
    return len(dataset)


def _question(run: SavedRun) -> str:
    if run.config.predictor == "human":
        return f"People were asked: {run.config.prompt}"
    return f"The answers are those of a scripted teacher (`{run.config.teacher}`)."


@contextlib.contextmanager
def _filmed(run: SavedRun, console: Console) -> Iterator[Clips]:
    """Both segments of each preference as films, in a folder that goes again."""
    with (
        tempfile.TemporaryDirectory(prefix="rl-teacher-export-") as folder,
        contextlib.closing(run.open_ledger()) as ledger,
        contextlib.closing(ClipRenderer()) as renderer,
    ):

        def path(uuid: UUID, side: str) -> Path:
            return Path(folder) / f"{uuid}-{side}.mp4"

        films = [
            renderer.submit(
                ClipJob(Shot.of(segment), path(preference.uuid, side), run.task.fps, size=_CLIP_SIZE)
            )
            for preference in ledger.targets()
            for side, segment in zip(SIDES, (preference.first, preference.second), strict=True)
        ]
        with progress(console, "filming", len(films)) as show:
            for count, film in enumerate(films, 1):
                film.result()
                show(count)
        yield lambda uuid: (path(uuid, SIDES[0]).read_bytes(), path(uuid, SIDES[1]).read_bytes())


def main(arguments: Sequence[str]) -> int:
    """Run ``teach export``; returns the exit status."""
    parser = OneLineParser(
        prog="teach export",
        description="Write the labels of a run into a file for other programs, and its predictor.",
        epilog="example: teach export runs/ShortHopper-v1/backflip labels.npz --predictor reward.npz",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="such as runs/ShortHopper-v1/backflip")
    parser.add_argument(
        "labels",
        type=Path,
        nargs="?",
        help="the .npz or .parquet file to write, or a folder, which Hugging Face shows as a dataset",
    )
    parser.add_argument("--clips", action="store_true", help="film all pairs, and put the films into it")
    parser.add_argument("--predictor", type=Path, metavar="FILE", help="write the predictor into this .npz")
    given = parser.parse_args(arguments)

    def work() -> None:
        if given.labels is None and given.predictor is None:
            raise ConfigError("expected a file for the labels, or --predictor FILE")
        if given.predictor is not None and given.predictor.suffix != ".npz":
            raise ConfigError(f"expected a file of a predictor named *.npz, got {given.predictor}")
        if given.predictor is not None:
            require_folder(given.predictor)
            require_new(given.predictor)
            if given.predictor == given.labels:
                raise ConfigError(f"expected two files for labels and predictor, got {given.labels} for both")
            run = SavedRun(given.run)
            predictor = run.load_predictor()  # before anything is written, because it may not be there
        if given.labels is not None:
            count = export_preferences(
                given.run, given.labels, clips=given.clips, console=Console(soft_wrap=True)
            )
            print(f"{given.labels}: {counted(count, 'preference')}")
        if given.predictor is not None:
            spaces = run.task.observation_space, run.task.action_space
            save_predictor(given.predictor, predictor, *spaces)
            print(f"{given.predictor}: the predictor of {given.run}")

    return report_errors(parser, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

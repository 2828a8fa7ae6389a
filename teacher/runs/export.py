"""Export of a run's preferences to a file or dataset for other programs."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from rich.console import Console

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.datasets.cards import DATASET_NAME, check_folder, write_dataset_card
from teacher.datasets.parquet import SIDES, Clips
from teacher.datasets.preference_files import require_room_for_clips, save_preferences
from teacher.files import require_new
from teacher.queries.kinds import preferences_in
from teacher.reporting.console import progress
from teacher.runs.saved_run import SavedRun

_CLIP_SIZE = 200  # pixels; dataset viewers show clips small


def export_preferences(
    run_dir: str | Path,
    path: str | Path,
    *,
    clips: bool = False,
    console: Console | None = None,
    license_id: str = "unknown",
) -> int:
    """Write all of a run's preferences to a file or folder, and return how many there are.

    Args:
        path: a new ``.npz`` or ``.parquet`` file, or a folder for a Hugging Face dataset. The folder may be
            new or contain an earlier export, which is overwritten.
        license_id: identifier of the labels' license on the Hub, for a dataset folder.
    """
    run, path = SavedRun(Path(run_dir)), Path(path)
    dataset = run.load_preferences()
    is_folder = not path.suffix
    is_new = True
    if is_folder:
        is_new = check_folder(path, DATASET_NAME, "labels")
    else:
        require_new(path)
    file = path / DATASET_NAME if is_folder else path
    if clips:  # check before spending time on rendering
        require_room_for_clips(file)
    spaces = run.task.observation_space, run.task.action_space
    with contextlib.ExitStack() as parts:
        films = parts.enter_context(_filmed(run, console or Console(quiet=True))) if clips else None
        save_preferences(file, dataset, *spaces, clips=films, new=is_new)
    if is_folder:
        write_dataset_card(path, dataset, question_of(run), license_id, clips=clips, new=is_new)
    return dataset.labels


def question_of(run: SavedRun) -> str:
    """Return a sentence that says who labeled the run's clips and what they were asked."""
    if run.config.predictor == "human":
        return f"Labelers were asked: {run.config.prompt}"
    return f"The labels are from a scripted teacher (`{run.config.teacher}`)."


@contextlib.contextmanager
def _filmed(run: SavedRun, console: Console) -> Iterator[Clips]:
    """Render the clips for all preferences; yield a function that maps a preference UUID to its clips."""
    with (
        tempfile.TemporaryDirectory(prefix="rl-teacher-export-") as folder,
        contextlib.closing(run.open_ledger()) as ledger,
        contextlib.closing(ClipRenderer()) as renderer,
    ):

        def path(uuid: UUID, side: str) -> Path:
            return Path(folder) / f"{uuid}-{side}.mp4"

        films = [
            renderer.submit(
                ClipJob(ClipSpec.of(segment), path(preference.uuid, side), run.task.fps, size=_CLIP_SIZE)
            )
            for preference in preferences_in(ledger)
            for side, segment in zip(SIDES, preference.items, strict=True)
        ]
        with progress(console, "clips rendered", len(films)) as show:
            show(0)
            for count, film in enumerate(films, 1):
                film.result()
                show(count)
        yield lambda uuid: (path(uuid, SIDES[0]).read_bytes(), path(uuid, SIDES[1]).read_bytes())

"""``teach ls``: list the runs in a folder and their progress."""

import contextlib
import fcntl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.errors import ConfigError, TeacherError
from teacher.reporting.timing import read_progress
from teacher.settings.arguments import OneLineParser, report_errors
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import CONFIG_NAME, load_config

_TITLES = ("run", "rewards", "steps", "labels", "return", "saved", "state")
_AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


@dataclass(frozen=True)
class RunSummary:
    """State of a run, as read from its folder.

    Attributes:
        steps: number of environment steps taken so far, or up to the checkpoint if the run is not active.
        labels: number of usable labels, which excludes ``cant_tell``.
        last_return: mean true return of the most recent episodes as of the checkpoint; None if unknown.
        saved: Unix timestamp of the checkpoint; None if there is no checkpoint.
        state: ``running`` while a process holds the folder's lock; otherwise, ``done`` if all steps have been
            taken, ``new`` if there is no checkpoint yet, ``finished`` if someone finished it on the site, or
            else ``stopped``.
        seconds_left: estimated seconds of training left, excluding waits for labels; None if unknown.
    """

    folder: Path
    config: TeachConfig
    steps: int
    labels: int
    last_return: float | None
    saved: float | None
    state: str
    seconds_left: float | None = None


def summarize(folder: Path) -> RunSummary:
    """Read the state of the run in a folder.

    Raises:
        TeacherError: the folder is damaged or contains no run.
    """
    config, _ = load_config(folder)
    checkpoint = folder / CHECKPOINT_NAME
    outline = load_state(checkpoint, with_arrays=False) if checkpoint.exists() else None
    steps, left = int(outline["agent"]["total_steps"]) if outline else 0, None
    labels = 0
    if (folder / LEDGER_NAME).exists():
        with contextlib.closing(Ledger(folder / LEDGER_NAME, read_only=True)) as ledger:
            labels = ledger.usable()
    if _is_held(folder / "lock"):
        state = "running"
        steps_told, left = read_progress(folder)
        steps = max(steps, steps_told)
    elif outline is None:
        state = "new"
    elif steps >= config.num_timesteps:
        state = "done"
    else:
        state = "finished" if outline.get("finished_on_site") else "stopped"
    return RunSummary(
        folder,
        config,
        steps,
        labels,
        outline.get("return") if outline else None,
        checkpoint.stat().st_mtime if outline else None,
        state,
        left,
    )


def _is_held(lock: Path) -> bool:
    """Return True if a process has locked the file; a run keeps its ``lock`` file locked while it runs."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _row(run: RunSummary) -> tuple[str, ...]:
    config = run.config
    wanted = "" if config.n_labels is None else f"/{config.n_labels}"
    return (
        str(run.folder),
        config.predictor,
        f"{_short(run.steps)}/{_short(config.num_timesteps)}",
        "" if config.predictor == "rl" else f"{run.labels}{wanted}",
        "-" if run.last_return is None else f"{run.last_return:.1f}",
        "-" if run.saved is None else f"{_age(time.time() - run.saved)} ago",
        run.state if run.seconds_left is None else f"{run.state}, {_age(run.seconds_left)} left",
    )


def _short(count: int) -> str:
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def _age(seconds: float) -> str:
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a text table; the first two columns and the last are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *numbers, last = (
            cell.ljust(width) if index in (0, 1, len(row) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *numbers, last]).rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run ``teach ls`` and return the exit status, which is 1 if a run is damaged."""
    parser = OneLineParser(
        prog="teach ls",
        description="List the runs in a folder and their progress, ending with the most recently saved run.",
    )
    parser.add_argument(
        "runs_dir",
        nargs="?",
        type=Path,
        default=Path("runs"),
        help="parent folder of the runs (default: runs)",
    )
    given = parser.parse_args(arguments)

    def work() -> int:
        folders = sorted(path.parent for path in given.runs_dir.glob(f"*/*/{CONFIG_NAME}"))
        if not folders:
            raise ConfigError(
                f"there are no runs in the folder {given.runs_dir}; start one with teach -p human -e "
                "ShortHopper-v1 -n NAME, or pass a different folder"
            )
        runs, damaged = [], []
        for folder in folders:
            try:
                runs.append(summarize(folder))
            except TeacherError as error:
                if (folder / CONFIG_NAME).exists():  # a run that fails at its start removes its folder
                    damaged.append(str(error))
        if runs:
            runs.sort(key=lambda run: run.saved or 0.0)
            print(table([_TITLES, *map(_row, runs)]))
        for line in damaged:
            print(f"damaged: {line}")
        return int(bool(damaged))

    return report_errors(parser, work)

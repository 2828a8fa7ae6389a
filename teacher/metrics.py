"""What a run tells: TensorBoard events, console lines, progress bars, correlations."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from torch.utils.tensorboard import SummaryWriter

_HEADER_EVERY = 25
_STEPS_A_LINE = 1000  # at least; most tasks' rollouts are longer
_SAY_AGAIN_SECONDS = 30.0
BEHAVIOUR_TAG = "agent/behaviour_per_episode"
_COLUMNS = (
    # title, width, tag, format
    ("return", 9, "agent/true_reward_per_episode", ".1f"),
    ("behaviour", 10, BEHAVIOUR_TAG, ".2f"),
    ("answered", 9, "labels/answered", ".0f"),
    ("asked", 6, "labels/asked", ".0f"),
    ("due", 6, "labels/desired", ".0f"),
    ("loss", 7, "predictor/loss", ".3f"),
    ("accuracy", 9, "predictor/accuracy", ".0%"),
    ("rank corr", 10, "predictor/rank_correlation", ".2f"),
)


def correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Pearson's correlation, NaN where one side is constant or fewer than three values are given."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's rank correlation, NaN where one side is constant or fewer than three values are given."""
    return correlation(_ranks(first), _ranks(second))


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Where each value stands among all, from 1; equal values share the mean of their places.

    As ``scipy.stats.rankdata``, which takes half a second to import.
    """
    _, places, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return shared[places]


class Metrics:
    """Writes the values of each iteration to TensorBoard, and a console line now and then.

    Args:
        folder: where the event files go.
        num_timesteps: steps of the whole run, for the time left.
        start_step: steps already made; events of a killed run beyond it are hidden.
    """

    def __init__(self, folder: Path, num_timesteps: int, start_step: int, console: Console) -> None:
        self.console = console
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1)
        self._num_timesteps = num_timesteps
        self._start = (start_step, time.monotonic())
        self._lines = 0
        self._next_line_at = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write ``values`` (TensorBoard tag to value) at ``step``; NaN means not known and is left out."""
        known = {tag: value for tag, value in values.items() if not np.isnan(value)}
        for tag, value in known.items():
            self._writer.add_scalar(tag, value, step)
        if step >= min(self._next_line_at, self._num_timesteps):
            self._print_line(step, values)
            self._next_line_at = step + _STEPS_A_LINE

    def _print_line(self, step: int, values: Mapping[str, float]) -> None:
        columns = [column for column in _COLUMNS if _belongs(column[2], values)]
        if self._lines % _HEADER_EVERY == 0:
            titles = "".join(title.rjust(width) for title, width, _, _ in columns)
            self.console.print(
                f"{'steps':>11}{titles}{'steps/s':>9}{'left':>9}", style="bold", highlight=False
            )
        self._lines += 1
        start_step, start_time = self._start
        rate = (step - start_step) / max(time.monotonic() - start_time, 1e-9)
        left = max(self._num_timesteps - step, 0) / max(rate, 1e-9)
        cells = "".join(
            ("-" if np.isnan(values.get(tag, math.nan)) else format(values[tag], spec)).rjust(width)
            for _, width, tag, spec in columns
        )
        self.console.print(f"{step:>11,}{cells}{rate:>9,.0f}{_duration(left):>9}", highlight=False)

    def close(self) -> None:
        """Flush the event files."""
        self._writer.close()


def _belongs(tag: str, values: Mapping[str, float]) -> bool:
    """Whether a run with such values, some of them perhaps not known yet, has this column."""
    if tag == BEHAVIOUR_TAG:
        return tag in values
    return tag.startswith("agent/") or "labels/asked" in values


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(min(seconds, 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar; call what it yields with the number completed so far.

    It ends full. Where there is no terminal a line is printed now and then.
    """
    if not console.is_terminal:
        say = _Occasionally(console)
        yield lambda completed: say(f"{title}: {completed} of {total}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda completed: bar.update(task, completed=completed, total=max(total, completed))
        bar.update(task, total=bar.tasks[0].completed)


@contextmanager
def waiting(console: Console, after: float = 0.0) -> Iterator[Callable[[str], None]]:
    """A line that says what is waited for; call what it yields with the text, as often as you like.

    On a terminal the line changes in place, elsewhere one is printed now and then; nothing is shown in the
    first ``after`` seconds.
    """
    begin, say = time.monotonic() + after, _Occasionally(console)
    with contextlib.ExitStack() as stack:
        statuses: list[Status] = []

        def show(text: str) -> None:
            if time.monotonic() < begin:
                return
            if not console.is_terminal:
                say(text)
            elif statuses:
                statuses[0].update(text)
            else:  # not before there is something to wait for
                statuses.append(stack.enter_context(console.status(text)))

        yield show


class _Occasionally:
    """Prints a text when it is new, at most twice a minute."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = ""
        self._told_at = -math.inf

    def __call__(self, text: str) -> None:
        if text != self._told and time.monotonic() - self._told_at > _SAY_AGAIN_SECONDS:
            self._console.print(text, highlight=False)
            self._told, self._told_at = text, time.monotonic()

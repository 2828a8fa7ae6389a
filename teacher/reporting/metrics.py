"""Logging of each iteration's metrics to TensorBoard and the console."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

_HEADER_EVERY = 25
_STEPS_A_LINE = 1000  # minimum; most rollouts are longer
LOG_FOLDER = "tensorboard"
BEHAVIOR_TAG = "agent/behaviour_per_episode"
SUCCESS_TAG = "agent/success_rate"
TRUE_RETURN_TAG = "agent/true_reward_per_episode"


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    tag: str
    form: Callable[[float], str]


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(min(seconds, 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


_RETURN = _Column("return", 9, TRUE_RETURN_TAG, "{:.1f}".format)
_SUCCESS = _Column("success", 9, SUCCESS_TAG, "{:.0%}".format)
_BEHAVIOR = _Column("behavior", 11, BEHAVIOR_TAG, "{:.2f}".format)
_LABELS = (
    _Column("answered", 10, "labels/answered", "{:.0f}".format),
    _Column("asked", 7, "labels/asked", "{:.0f}".format),
    _Column("due", 6, "labels/desired", "{:.0f}".format),
    _Column("loss", 7, "predictor/loss", "{:.3f}".format),
    _Column("accuracy", 10, "predictor/accuracy", "{:.0%}".format),
)
_RANKS = _Column("rank corr", 11, "predictor/rank_correlation", "{:.2f}".format)
_FRESH = _Column("fresh acc", 11, "predictor/fresh_accuracy", "{:.0%}".format)
_TIMES = (
    _Column("steps/s", 9, "time/steps_per_second", "{:,.0f}".format),
    _Column("left", 9, "time/seconds_left", _duration),
)
_WAITED = _Column("waited", 9, "time/seconds_waited", _duration)
# People may want something other than what the environment rewards, so for them its return comes last.
_ENV_RETURN = replace(_RETURN, title="env return", width=12)
# Dropped in this order if a line is too long for the terminal; the rest is in TensorBoard anyway.
_EXPENDABLE = (
    "predictor/loss", "labels/desired", "time/steps_per_second", "predictor/accuracy", "labels/asked",
    "time/seconds_waited", "predictor/rank_correlation", "predictor/fresh_accuracy", SUCCESS_TAG,
    BEHAVIOR_TAG, "time/seconds_left",
)  # fmt: skip
_STEPS_WIDTH = 11
_WITH_PEOPLE = (_BEHAVIOR, *_LABELS, _FRESH, *_TIMES, _WAITED, _ENV_RETURN, _SUCCESS)
_ALONE = (_RETURN, _SUCCESS, _BEHAVIOR, *_LABELS, _RANKS, *_TIMES)


def read_last(run_dir: Path) -> dict[str, float]:
    """Return the last logged value of each TensorBoard tag of a run; empty if nothing was logged."""
    # Takes half a second to import, and training only writes.
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    if not (run_dir / LOG_FOLDER).is_dir():
        return {}
    events = EventAccumulator(str(run_dir / LOG_FOLDER)).Reload()
    return {tag: float(events.Scalars(tag)[-1].value) for tag in events.Tags()["scalars"]}


class Metrics:
    """Writes each iteration's metrics to TensorBoard and prints some of them to the console.

    Console lines are at least 1,000 steps apart, and have the most important columns that fit the terminal.

    Args:
        num_timesteps: total steps of the run; a line is always printed at the last step.
        start_step: step at which training starts or resumes. TensorBoard purges (hides) events at later
            steps that were left by a killed run.
        people: True if people provide the labels; False for a scripted teacher or a run without labels.
    """

    def __init__(
        self, folder: Path, num_timesteps: int, start_step: int, console: Console, *, people: bool = False
    ) -> None:
        self.console = console
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1)
        self._num_timesteps = num_timesteps
        self._columns = _WITH_PEOPLE if people else _ALONE
        self._lines = 0
        self._titles = ""
        self._next_line_at = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log ``values``, whose keys are TensorBoard tags, at ``step``. NaN values are omitted."""
        known = {tag: value for tag, value in values.items() if not np.isnan(value)}
        for tag, value in known.items():
            self._writer.add_scalar(tag, value, step)
        if step >= min(self._next_line_at, self._num_timesteps):
            self._print_line(step, values)
            self._next_line_at = step + _STEPS_A_LINE

    def _print_line(self, step: int, values: Mapping[str, float]) -> None:
        belonging = [column for column in self._columns if _belongs(column.tag, values)]
        columns = _fitted(belonging, self.console.width - _STEPS_WIDTH)
        titles = "".join(column.title.rjust(column.width) for column in columns)
        if self._lines % _HEADER_EVERY == 0 or titles != self._titles:
            self.console.print(f"{'steps':>{_STEPS_WIDTH}}{titles}", style="bold", highlight=False)
            self._lines, self._titles = 0, titles
        self._lines += 1
        cells = "".join(_cell(column, values).rjust(column.width) for column in columns)
        self.console.print(f"{step:>{_STEPS_WIDTH},}{cells}", highlight=False)

    def close(self) -> None:
        """Flush and close the event files."""
        self._writer.close()


def _fitted(columns: Sequence[_Column], width: int) -> Sequence[_Column]:
    """Return the columns without the most expendable, so that a line has ``width`` characters at most."""
    for tag in _EXPENDABLE:
        if sum(column.width for column in columns) <= width:
            break
        columns = [column for column in columns if column.tag != tag]
    return columns


def _belongs(tag: str, values: Mapping[str, float]) -> bool:
    """Return True if the console has a column for ``tag``, given the metrics in ``values``.

    Only the keys of ``values`` matter, so a metric that is NaN still gets its column.
    """
    if tag in (BEHAVIOR_TAG, SUCCESS_TAG):
        return tag in values
    return tag.startswith(("agent/", "time/")) or "labels/asked" in values


def _cell(column: _Column, values: Mapping[str, float]) -> str:
    value = values.get(column.tag, math.nan)
    return "-" if math.isnan(value) else column.form(value)

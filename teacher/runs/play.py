"""Episodes played with a run's policy, and images and videos of them with plots of the predicted rewards.

Plots require matplotlib, which the extra ``plots`` installs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.numerics.correlation import rank_correlation
from teacher.clips.encode import Frame, encode
from teacher.clips.render import CLIP_SIZE, ClipSpec, frames_of
from teacher.data.segments import Segment, slice_of
from teacher.envs.random_episodes import policy_trajectories
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.extras import require_extra
from teacher.files import saved
from teacher.reward.predictor import RewardPredictor
from teacher.runs.saved_run import SavedRun

_STRIP = 9  # frames
_PREDICTED, _TRUE, _INK, _FAINT = "#1f6fb4", "#d9731a", "#22303c", "#c9d1d8"
_WIDTH = 10.0  # inches
_DPI = 100
_PANEL_HEIGHT = 150  # pixels, in a video
_LEAST_FILM_WIDTH = 320
_PANEL_FONT = 7.5


@dataclass(frozen=True, eq=False)
class RewardTrace:
    """Predicted and true rewards of consecutive steps, for plotting.

    Attributes:
        members: rewards predicted by each ensemble member, on the same scale, ``(members, steps)``.
        true: true rewards, ``(steps,)``; None if unknown or constant.
    """

    predicted: NDArray[np.float64]
    members: NDArray[np.float64]
    true: NDArray[np.float64] | None
    fps: int

    @classmethod
    def of(cls, predictor: RewardPredictor, steps: Segment | Trajectory, fps: int) -> "RewardTrace":
        """Predict the rewards of an episode or segment; set ``true`` to None if true rewards are constant."""
        true = np.asarray(steps.true_rewards, np.float64)
        return cls(
            predictor.step_rewards(steps),
            predictor.member_rewards(steps),
            true if np.ptp(true) else None,
            fps,
        )

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Time in seconds at which each step ends, ``(steps,)``."""
        return np.arange(1, len(self.predicted) + 1) / self.fps

    @property
    def true_to_scale(self) -> NDArray[np.float64] | None:
        """True rewards, rescaled to match the mean and standard deviation of the predicted rewards.

        None if ``true`` is None.
        """
        if self.true is None:
            return None
        standard = (self.true - self.true.mean()) / self.true.std()
        scaled: NDArray[np.float64] = standard * self.predicted.std() + self.predicted.mean()
        return scaled

    def summary(self) -> str:
        """Return a one-line summary of predicted and true rewards.

        It contains the predicted return. If true rewards are known, it also contains the true return and the
        rank correlation between per-step predicted and true rewards.
        """
        said = f"predicted sum {self.predicted.sum():.2f}"
        if self.true is None:
            return said
        alike = rank_correlation(self.predicted, self.true)
        return f"{said}, true return {self.true.sum():.1f}, rank correlation of steps {alike:.2f}"


def draw_rewards(path: str | Path, trace: RewardTrace, frames: Sequence[Frame], title: str = "") -> None:
    """Write a PNG image with a strip of frames above a plot of the rewards."""
    path = Path(path)
    figures = require_extra("matplotlib.figure", f"the image {path}", "plots")
    height, width = frames[0].shape[:2]
    strip = 0.9 * _WIDTH / _STRIP * height / width
    figure = figures.Figure(figsize=(_WIDTH, strip + 3.0), dpi=_DPI)
    top, bottom = figure.subplots(
        2,
        sharex=True,
        gridspec_kw={
            "height_ratios": [strip, 1.9],
            "left": 0.08, "right": 0.98, "top": 1 - 0.62 / (strip + 3.0), "bottom": 0.5 / (strip + 3.0),
            "hspace": 0.02,
        },
    )  # fmt: skip
    end = float(trace.seconds[-1])
    shown = ((np.arange(_STRIP) + 0.5) / _STRIP * len(frames)).astype(int)
    for place, index in enumerate(shown):
        left, right = end * place / _STRIP, end * (place + 1) / _STRIP
        gap = 0.02 * (right - left)
        top.imshow(
            frames[index], extent=(left + gap, right - gap, 0, 1), aspect="auto", interpolation="lanczos"
        )
        bottom.axvline((left + right) / 2, color=_FAINT, linewidth=0.8, zorder=0)
    top.set(xlim=(0, end), ylim=(0, 1))
    top.axis("off")
    _draw_curves(bottom, trace)
    bottom.set_xlabel("seconds", color=_INK)
    figure.legend(
        loc="center right", bbox_to_anchor=(0.985, 1 - 0.26 / (strip + 3.0)), ncols=3, frameon=False,
        fontsize=9, labelcolor=_INK,
    )  # fmt: skip
    figure.text(0.08, 1 - 0.26 / (strip + 3.0), title, fontsize=12, color=_INK, weight="bold", va="center")
    figure.text(0.08, 1 - 0.48 / (strip + 3.0), trace.summary(), fontsize=9, color=_INK, va="center")
    with saved(path, f"the image {path}") as file:
        figure.savefig(file, format="png")


def film_rewards(path: str | Path, trace: RewardTrace, frames: Iterable[Frame]) -> None:
    """Write an MP4 video with a reward plot below the frames; a line in the plot marks the current step."""
    require_extra("matplotlib.figure", f"the video {path}", "plots")
    moving = iter(frames)
    first = _enlarged(next(moving))
    height, width = first.shape[:2]
    panel, columns = _panel(trace, width)

    def composed() -> Iterator[Frame]:
        yield _below(first, panel, columns[0])
        for frame, column in zip(moving, columns[1:], strict=True):
            yield _below(_enlarged(frame), panel, column)

    encode(composed(), Path(path), trace.fps, max(width, height + _PANEL_HEIGHT))


def _enlarged(frame: Frame) -> Frame:
    factor = -(-_LEAST_FILM_WIDTH // frame.shape[1])
    return frame if factor == 1 else np.repeat(np.repeat(frame, factor, axis=0), factor, axis=1)


def _below(frame: Frame, panel: Frame, column: int) -> Frame:
    marked = panel.copy()
    marked[20 : _PANEL_HEIGHT - 22, column : column + 2] = (200, 40, 40)
    return np.concatenate([frame, marked])


def _panel(trace: RewardTrace, width: int) -> tuple[Frame, list[int]]:
    """Draw the reward plot of a video; return the image and each step's x coordinate in pixels."""
    figures = require_extra("matplotlib.figure", "a reward video", "plots")
    canvas_of = require_extra("matplotlib.backends.backend_agg", "a reward video", "plots").FigureCanvasAgg
    figure = figures.Figure(figsize=(width / _DPI, _PANEL_HEIGHT / _DPI), dpi=_DPI)
    axes = figure.add_axes((46 / width, 22 / _PANEL_HEIGHT, 1 - 56 / width, 1 - 42 / _PANEL_HEIGHT))
    _draw_curves(axes, trace)
    axes.set_ylabel("")
    axes.tick_params(labelsize=_PANEL_FONT)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 0.98), ncols=3, frameon=False, fontsize=_PANEL_FONT,
        borderaxespad=0, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip
    canvas = canvas_of(figure)
    canvas.draw()
    image: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[..., :3]
    places = axes.transData.transform([(second, 0.0) for second in trace.seconds])[:, 0]
    return image.copy(), [min(int(place), width - 2) for place in places]


def _draw_curves(axes: Any, trace: RewardTrace) -> None:
    spread = trace.members.std(axis=0)
    seconds = trace.seconds
    if len(trace.members) > 1:
        axes.fill_between(
            seconds,
            trace.predicted - spread,
            trace.predicted + spread,
            color=_PREDICTED,
            alpha=0.18,
            linewidth=0,
            label="\N{PLUS-MINUS SIGN} std of members",
        )
    if trace.true_to_scale is not None:
        axes.plot(seconds, trace.true_to_scale, color=_TRUE, linewidth=1.0, label="true, rescaled")
    axes.plot(seconds, trace.predicted, color=_PREDICTED, linewidth=1.5, label="predicted")
    axes.set(xlim=(0, float(seconds[-1])))
    axes.set_ylabel("reward per step", color=_INK)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.margins(y=0.12)


def play_episodes(run: SavedRun, count: int, seed: int, *, sampled: bool = False) -> list[Trajectory]:
    """Play episodes with a run's policy and return them in ascending order of true return.

    Args:
        sampled: True to sample actions, as in training; False to take the most likely actions.
    """
    act = partial(run.load_agent().act, deterministic=not sampled)
    episodes = policy_trajectories(run.task, seed, act, num_envs=min(count, 8))
    return sorted(islice(episodes, count), key=lambda episode: episode.true_return)


def cut(episode: Trajectory, start: int, steps: int | None) -> Segment:
    """Return a slice of at most ``steps`` steps from an episode, starting at step ``start``.

    If ``steps`` is None, the slice runs to the end of the episode.
    """
    stop = len(episode) if steps is None else min(start + steps, len(episode))
    if not 0 <= start < stop:
        raise DataError(f"--start must be from 0 to {len(episode) - 1}, the episode's last step, not {start}")
    return slice_of(episode, start, stop)


def show(run: SavedRun, clip: Segment, path: Path, *, rewards: bool) -> str:
    """Write a video of a segment, with a reward plot if ``rewards`` is True.

    If ``rewards`` is True and ``path`` ends in ``.png``, write an image instead: a strip of frames above the
    reward plot.

    Returns:
        One-line summary of the rewards; empty if ``rewards`` is False.
    """
    frames = frames_of(ClipSpec.of(clip))
    if not rewards:
        encode(frames, path, run.task.fps, CLIP_SIZE)
        return ""
    trace = RewardTrace.of(run.load_predictor(), clip, run.task.fps)
    if path.suffix == ".png":
        draw_rewards(path, trace, list(frames), f"{run.config.env_id}, {run.config.name}")
    else:
        film_rewards(path, trace, frames)
    return trace.summary()

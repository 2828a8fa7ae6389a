"""The two renderers that the benchmark of clips compares: RL-Teacher's pool of processes, and Gymnasium."""

import contextlib
import functools
import math
import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.encode import HOLD_SECONDS, Frame
from teacher.clips.render import ReplayRenderer
from teacher.data.segments import Segment
from teacher.envs.tasks import TaskInfo

SIZE = 256  # pixels


class Side(Protocol):
    """Protocol of a renderer that turns segments into clips."""

    def render(self, segments: Sequence[Segment], folder: Path) -> list[Path]:
        """Write one clip per segment to ``folder`` and return their paths."""

    def frames(self, segment: Segment) -> list[Frame]:
        """Return a segment's rendered frames, without the still frames at the end of a clip."""

    def close(self) -> None:
        """Stop the renderer's processes."""


class TeacherSide:
    """RL-Teacher's pool of rendering processes, as a run uses it."""

    def __init__(self, task: TaskInfo, workers: int = 1) -> None:
        self._task, self._renderer = task, ClipRenderer(workers)

    def render(self, segments: Sequence[Segment], folder: Path) -> list[Path]:
        """Render one clip per segment in the pool and return their paths."""
        clips: list[Future[Path]] = [
            self._renderer.submit(
                ClipJob(ClipSpec.of(segment), folder / f"{index}.mp4", self._task.fps, size=SIZE)
            )
            for index, segment in enumerate(segments)
        ]
        return [clip.result() for clip in clips]

    def frames(self, segment: Segment) -> list[Frame]:
        """Replay a segment in this process and return its frames."""
        with contextlib.closing(ReplayRenderer(self._task.env_id, self._task.kwargs, SIZE)) as stage:
            return list(stage.frames(ClipSpec.of(segment)))

    def close(self) -> None:
        """Stop the rendering processes."""
        self._renderer.close()


class GymnasiumSide:
    """Gymnasium's own rendering: its MuJoCo viewer and its ``save_video``, which needs moviepy."""

    def __init__(self, task: TaskInfo) -> None:
        self._fps = task.fps

    @functools.cached_property
    def _env(self) -> gym.Env[Any, Any]:
        os.environ.setdefault("MUJOCO_GL", "egl")  # otherwise MuJoCo tries a display first
        return gym.make(
            "Hopper-v5", terminate_when_unhealthy=False, render_mode="rgb_array", width=SIZE, height=SIZE
        )

    def render(self, segments: Sequence[Segment], folder: Path) -> list[Path]:
        """Write one clip per segment with ``save_video``, with RL-Teacher's still frames at the end."""
        from gymnasium.utils.save_video import save_video  # noqa: PLC0415 - needs moviepy

        held = math.ceil(HOLD_SECONDS * self._fps)
        for index, segment in enumerate(segments):
            frames = self.frames(segment)
            save_video([*frames, *frames[-1:] * held], str(folder), fps=self._fps, name_prefix=str(index))
        return [folder / f"{index}-episode-0.mp4" for index in range(len(segments))]

    def frames(self, segment: Segment) -> list[Frame]:
        """Replay a segment and return its frames; AssertionError if the observations differ."""
        frames: list[Any] = []
        if viewer := self._env.unwrapped.mujoco_renderer.viewer:  # type: ignore[attr-defined]
            viewer.make_context_current()  # another OpenGL context may have become current
        observation, _ = self._env.reset(seed=segment.recipe.seed)
        for step, action in enumerate(segment.recipe.actions, -segment.start):
            assert step < 0 or np.array_equal(observation, segment.observations[step]), "the replay diverged"
            observation, *_ = self._env.step(action)
            if step >= 0:
                frames.append(self._env.render())
        return frames

    def close(self) -> None:
        """Close the environment and its viewer."""
        self._env.close()


def open_side(name: str, task: TaskInfo) -> Side:
    """Return the renderer with this name, ``teacher`` or ``gymnasium``."""
    return TeacherSide(task) if name == "teacher" else GymnasiumSide(task)

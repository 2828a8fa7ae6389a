"""Videos of whole episodes, rendered in another process during training."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from rich.console import Console

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.envs.trajectory import Trajectory
from teacher.training.terminal import waiting

CLIPS_PER_RUN = 20
FILM_SECONDS = 120.0
"""Maximum time between videos, however few steps were made, so that the latest one shows current behavior."""


class EpisodeVideos:
    """Makes videos of the first finished episode, one per 5% of the run or two minutes, and the last.

    A separate process renders. If it falls behind, waiting episodes are dropped for newer ones. A video that
    cannot be made, for instance because no OpenGL library is installed, is reported once; training continues
    without it.

    Args:
        folder: folder of the videos.
        num_timesteps: steps of the whole run.
        fps: frames per second; one frame is one step.
        console: console to print to.
        show: called from another thread with each finished video and its step.
    """

    def __init__(
        self,
        folder: Path,
        num_timesteps: int,
        fps: int,
        console: Console,
        show: Callable[[Path, int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._every = max(1, num_timesteps // CLIPS_PER_RUN)
        self._fps = fps
        self._console = console
        self._renderer = ClipRenderer(workers=1)
        self._clips: list[Future[Path]] = []
        self._told: list[Future[None]] = []  # each done once `show` has returned
        self._next_step = 0
        self._filmed_at = time.monotonic()
        self._newest: tuple[Trajectory, int] | None = None
        self._silent = False
        self._show = show

    def offer(self, episode: Trajectory, step: int) -> None:
        """Make a video of ``episode``, which ended before ``step``, if one is due."""
        self._newest = (episode, step)
        if step >= self._next_step or time.monotonic() - self._filmed_at >= FILM_SECONDS:
            self._film()

    def finish(self) -> None:
        """Make a video of the last offered episode and wait for it; Ctrl-C skips it."""
        self._film()
        if wait(self._told, timeout=0).not_done:
            with waiting(self._console) as tell, contextlib.suppress(KeyboardInterrupt):
                tell("making the last video (Ctrl-C skips it)")
                wait(self._told)

    def close(self) -> None:
        """Stop rendering immediately; unfinished videos leave no files and are not reported."""
        self._silent = True
        self._renderer.close()

    def _film(self) -> None:
        if self._newest is None:
            return
        (episode, step), self._newest = self._newest, None
        self._next_step = (step // self._every + 1) * self._every
        self._filmed_at = time.monotonic()
        self._folder.mkdir(exist_ok=True)
        for clip in self._clips:
            clip.cancel()  # no effect once rendering has started
        path = self._folder / f"step-{step:09d}.mp4"
        clip = self._renderer.submit(ClipJob(ClipSpec.of_episode(episode), path, self._fps))
        told: Future[None] = Future()
        self._clips = [earlier for earlier in self._clips if not earlier.done()] + [clip]
        self._told = [earlier for earlier in self._told if not earlier.done()] + [told]
        clip.add_done_callback(lambda clip: self._made(clip, step, told))

    def _made(self, clip: "Future[Path]", step: int, told: "Future[None]") -> None:
        try:
            if clip.cancelled():
                return
            error = clip.exception()
            if error is None and self._show is not None:
                self._show(clip.result(), step)
            elif error is not None and not self._silent:
                self._silent = True
                self._console.print(
                    f"no videos of whole episodes (-V turns them off): {error}", style="yellow"
                )
        finally:
            told.set_result(None)

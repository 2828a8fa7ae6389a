"""Videos of whole episodes, rendered in a separate process during training."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from rich.console import Console

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.envs.trajectory import Trajectory
from teacher.reporting.console import waiting

CLIPS_PER_RUN = 20
FILM_SECONDS = 120.0
"""Maximum seconds between videos, so that the latest one is recent even if training is slow."""


class EpisodeVideos:
    """Makes videos of the first episode, the last episode, and some episodes in between.

    In between, a video is due every 5% of the run or every two minutes, whichever comes first. A separate
    process renders the videos. If it falls behind, a waiting episode is replaced by a newer one. If a video
    cannot be made, for example because no OpenGL library is installed, the error is printed once and training
    continues.

    Args:
        show: callback for each finished video, called from another thread with the video's path, the
            training step at which its episode ended, and the episode.
    """

    def __init__(
        self,
        folder: Path,
        num_timesteps: int,
        fps: int,
        console: Console,
        show: Callable[[Path, int, Trajectory], None] | None = None,
    ) -> None:
        self._folder = folder
        self._every = max(1, num_timesteps // CLIPS_PER_RUN)
        self._fps = fps
        self._console = console
        self._renderer = ClipRenderer(workers=1)
        self._clips: list[Future[Path]] = []
        self._handled: list[Future[None]] = []  # one per video; done after `show` has returned
        self._next_step = 0
        self._filmed_at = time.monotonic()
        self._newest: tuple[Trajectory, int] | None = None
        self._silent = False
        self._show = show

    def offer(self, episode: Trajectory, step: int) -> None:
        """Make a video of ``episode``, which has just ended at training step ``step``, if one is due."""
        self._newest = (episode, step)
        if step >= self._next_step or time.monotonic() - self._filmed_at >= FILM_SECONDS:
            self._film()

    def finish(self) -> None:
        """Make a video of the last offered episode and wait until it is written; Ctrl-C skips the video."""
        self._film()
        if wait(self._handled, timeout=0).not_done:
            with waiting(self._console) as tell, contextlib.suppress(KeyboardInterrupt):
                tell("making the last video (Ctrl-C skips it)")
                wait(self._handled)

    def close(self) -> None:
        """Stop rendering immediately. Unfinished videos are not reported and leave no files."""
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
        handled: Future[None] = Future()
        self._clips = [earlier for earlier in self._clips if not earlier.done()] + [clip]
        self._handled = [earlier for earlier in self._handled if not earlier.done()] + [handled]
        clip.add_done_callback(lambda clip: self._made(clip, step, episode, handled))

    def _made(self, clip: "Future[Path]", step: int, episode: Trajectory, handled: "Future[None]") -> None:
        try:
            if clip.cancelled():
                return
            error = clip.exception()
            if error is None and self._show is not None:
                self._show(clip.result(), step, episode)
            elif error is not None and not self._silent:
                self._silent = True
                self._console.print(
                    f"cannot make videos of episodes (to turn them off, pass -V): {error}", style="yellow"
                )
        finally:
            handled.set_result(None)

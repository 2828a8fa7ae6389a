"""Clips of whole episodes, filmed beside training every so often."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from rich.console import Console

from teacher.clips import ClipJob, ClipRenderer, Shot
from teacher.config import TeachConfig
from teacher.envs.episodes import Trajectory
from teacher.envs.tasks import TaskInfo

CLIPS_PER_RUN = 20
_CLOSE_SECONDS = 10.0


class EpisodeVideos:
    """Films the first finished episode and then one in every twentieth of the run, in a process of its own.

    A clip that cannot be made, for instance because no OpenGL library is installed, is reported once;
    training goes on without.

    Args:
        show: called with each film and its step when it is made, from another thread.
    """

    def __init__(
        self,
        config: TeachConfig,
        task: TaskInfo,
        console: Console,
        show: Callable[[Path, int], None] | None = None,
    ) -> None:
        self._folder = config.run_dir / "videos"
        self._every = max(1, config.num_timesteps // CLIPS_PER_RUN)
        self._fps = task.fps
        self._console = console
        self._renderer = ClipRenderer(workers=1)
        self._clips: list[Future[Path]] = []
        self._next_step = 0
        self._complained = False
        self._show = show

    def offer(self, episode: Trajectory, step: int) -> None:
        """Film ``episode``, which ended before ``step``, where the next clip is due."""
        if step < self._next_step:
            return
        self._next_step = (step // self._every + 1) * self._every
        path = self._folder / f"step-{step:09d}.mp4"
        self._folder.mkdir(exist_ok=True)
        clip = self._renderer.submit(ClipJob(Shot.of_episode(episode), path, self._fps))
        clip.add_done_callback(lambda clip: self._made(clip, step))
        self._clips = [earlier for earlier in self._clips if not earlier.done()] + [clip]

    def _made(self, clip: "Future[Path]", step: int) -> None:
        if clip.cancelled():
            return
        if clip.exception() is None:
            if self._show is not None:
                self._show(clip.result(), step)
            return
        if self._complained:
            return
        self._complained = True
        self._console.print(
            f"no clips of whole episodes (-V turns them off): {clip.exception()}", style="yellow"
        )

    def close(self) -> None:
        """Stop filming; clips in the making have some seconds to be finished."""
        wait(self._clips, timeout=_CLOSE_SECONDS)
        self._renderer.close()

"""A first picture before a run begins, so that nobody is asked about clips that cannot be drawn here."""

import contextlib
import tempfile
from pathlib import Path

from teacher.clips.gl import with_install_command
from teacher.clips.pool import ClipRenderer
from teacher.clips.render import ClipJob, ClipSpec
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.errors import RenderError

_STREAM = 5  # apart from the episodes of everything else


def check_drawing(task: TaskInfo, seed: int) -> None:
    """Make a clip of one step, as all clips of a run are made: in a process of its own.

    Raises:
        RenderError: it cannot be made; where OpenGL is missing, the last line is what to type.
    """
    with contextlib.closing(make_vector_env(task, 1, [seed, _STREAM])) as envs:
        envs.action_space.seed(seed)
        envs.reset()
        envs.step(envs.action_space.sample())
        trajectory = envs.drain()[0]
    with tempfile.TemporaryDirectory() as folder, ClipRenderer(workers=1) as renderer:
        job = ClipJob(ClipSpec.of_episode(trajectory), Path(folder) / "clip.mp4", task.fps)
        try:
            renderer.submit(job).result()
        except RenderError as error:
            why = f"no clip of {task.env_id} can be made on this machine: {error}"
            raise RenderError(with_install_command(why)) from error

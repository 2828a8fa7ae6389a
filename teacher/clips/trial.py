"""A test clip before a run starts, to fail early if clips cannot be rendered on this machine."""

import contextlib
import tempfile
from pathlib import Path

from teacher.clips.gl import with_install_command
from teacher.clips.pool import ClipRenderer
from teacher.clips.render import ClipJob, ClipSpec
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.errors import RenderError

_STREAM = 5  # seed stream, distinct from all others


def check_drawing(task: TaskInfo, seed: int) -> None:
    """Render a clip of one step in a separate process, as all clips of a run.

    Raises:
        RenderError: it cannot be rendered; if OpenGL is missing, the last line is the command to install it.
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
            why = f"cannot render clips of {task.env_id} on this machine: {error}"
            raise RenderError(with_install_command(why)) from error

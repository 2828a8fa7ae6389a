"""Check before a run starts that clips can be rendered on this machine."""

import tempfile
from pathlib import Path

from teacher.clips.pool import ClipRenderer
from teacher.clips.render import ClipJob, ClipSpec
from teacher.envs.gl import with_install_command
from teacher.envs.random_episodes import random_steps
from teacher.envs.tasks import TaskInfo
from teacher.errors import RenderError


def check_drawing(task: TaskInfo, seed: int) -> str:
    """Render a one-step test clip in a separate process, in the same way as the run's clips.

    Returns:
        The renderer of a MuJoCo environment, and why; empty for other environments.
    """
    (trajectory,) = random_steps(task, seed)
    with tempfile.TemporaryDirectory() as folder, ClipRenderer(workers=1) as renderer:
        job = ClipJob(ClipSpec.of_episode(trajectory), Path(folder) / "clip.mp4", task.fps)
        try:
            renderer.submit(job).result()
        except RenderError as error:
            place = " on this machine" if "GL" in str(error) else ""
            why = f"cannot render clips of {task.env_id}{place}: {error}"
            raise RenderError(with_install_command(why)) from error
        return renderer.note

"""Selection of an OpenGL backend for headless MuJoCo rendering: EGL, or OSMesa if EGL does not work."""

import functools
import os
import shutil
import subprocess
import sys

from teacher.envs.capture import why_no_screen
from teacher.errors import RenderError

PACKAGES = ("libegl1", "libgl1-mesa-dri", "libosmesa6")
"""Debian packages of OpenGL for headless rendering."""
_ABOUT_OPENGL = ("GL", "OSMesa")
_BACKENDS = ("egl", "osmesa")
_PROBE = "from mujoco.{0} import GLContext; GLContext(8, 8).make_current()"


@functools.cache
def select_gl() -> str:
    """Return the OpenGL backend, selected once per process and stored in ``MUJOCO_GL``.

    A value already in ``MUJOCO_GL`` is used as is. Otherwise each backend is tried in a separate process, as
    PyOpenGL binds to its first platform for the life of a process.

    Raises:
        RenderError: no backend works, and the message names the packages to install; or ``MUJOCO_GL`` asks
            for a display and there is none.
    """
    if no_screen := why_no_screen():
        raise RenderError(no_screen)
    if chosen := os.environ.get("MUJOCO_GL"):
        return chosen
    for backend in _BACKENDS:
        if _works(backend):
            os.environ["MUJOCO_GL"] = backend
            return backend
    raise RenderError(
        "MuJoCo clips need headless OpenGL, and neither EGL nor OSMesa works here: "
        "install libegl1 and libgl1-mesa-dri, or libosmesa6"
    )


def with_install_command(message: str) -> str:
    """Return a message, followed by the command that installs OpenGL if the message is about that."""
    is_missing = any(word in message for word in _ABOUT_OPENGL) and not why_no_screen()
    command = install_command() if is_missing else ""
    return f"{message}\n{command}" if command else message


def install_command() -> str:
    """Return the shell command that installs OpenGL; empty on systems without apt-get."""
    if shutil.which("apt-get") is None:
        return ""
    command = f"apt-get update && apt-get install --yes {' '.join(PACKAGES)}"
    return command if os.geteuid() == 0 else f"sudo sh -c '{command}'"


def _works(backend: str) -> bool:
    environment = {**os.environ, "MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    probe = [sys.executable, "-c", _PROBE.format(backend)]
    return subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 0

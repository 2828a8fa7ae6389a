"""Which OpenGL draws MuJoCo without a screen: EGL, or OSMesa where EGL does not work."""

import functools
import os
import shutil
import subprocess
import sys

from teacher.envs.capture import why_no_screen
from teacher.errors import RenderError

PACKAGES = ("libegl1", "libgl1-mesa-dri", "libosmesa6")
"""Debian's packages of OpenGL that draws without a screen."""
_ABOUT_OPENGL = ("GL", "OSMesa")
_BACKENDS = ("egl", "osmesa")
_PROBE = "from mujoco.{0} import GLContext; GLContext(8, 8).make_current()"


@functools.cache
def select_gl() -> str:
    """Decide once per process, put the decision into ``MUJOCO_GL`` and return it.

    A ``MUJOCO_GL`` that is already set is believed. Otherwise each backend is tried in a process of its own,
    because PyOpenGL binds to the first platform it meets and can never leave it.

    Raises:
        RenderError: no backend works; the message names the packages to install. Or a screen is to be drawn
            on, and there is none.
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
        "MuJoCo clips need OpenGL without a screen, and neither EGL nor OSMesa works here: "
        "install libegl1 and libgl1-mesa-dri, or libosmesa6"
    )


def with_install_command(message: str) -> str:
    """Return a message, followed by the command that installs OpenGL where the message is about that."""
    is_missing = any(word in message for word in _ABOUT_OPENGL) and not why_no_screen()
    command = install_command() if is_missing else ""
    return f"{message}\n{command}" if command else message


def install_command() -> str:
    """Return the shell command that installs OpenGL; empty where the system is not Debian's."""
    if shutil.which("apt-get") is None:
        return ""
    command = f"apt-get update && apt-get install --yes {' '.join(PACKAGES)}"
    return command if os.geteuid() == 0 else f"sudo sh -c '{command}'"


def _works(backend: str) -> bool:
    environment = {**os.environ, "MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    probe = [sys.executable, "-c", _PROBE.format(backend)]
    return subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 0

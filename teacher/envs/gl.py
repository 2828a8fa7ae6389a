"""Selection of an OpenGL backend for MuJoCo rendering without a display."""

import functools
import os
import shutil
import subprocess
import sys

from teacher.errors import RenderError
from teacher.platforms import GL_BACKENDS

PACKAGES = ("libegl1", "libgl1-mesa-dri", "libosmesa6")
"""Debian packages for headless OpenGL rendering."""
_ABOUT_OPENGL = ("GL", "OSMesa")
_PROBE = "from mujoco.{0} import GLContext; GLContext(8, 8).make_current()"


def has_screen() -> bool:
    """Return True unless this is a Linux machine without a display."""
    return sys.platform != "linux" or bool(os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"})


def why_no_screen() -> str | None:
    """Return an error message if ``MUJOCO_GL=glfw`` is set but there is no display, else None."""
    if os.environ.get("MUJOCO_GL") != "glfw" or has_screen():
        return None
    return (
        "MUJOCO_GL=glfw needs a display, but there is none here (DISPLAY is not set); leave MUJOCO_GL "
        "unset, or set it to egl or osmesa"
    )


@functools.cache
def select_gl() -> str:
    """Select an OpenGL backend once per process, set ``MUJOCO_GL`` to it, and return its name.

    If ``MUJOCO_GL`` is already set, it is returned untested. Otherwise each backend is tested in a separate
    process, because PyOpenGL can't switch to a different backend within a process.
    """
    if no_screen := why_no_screen():
        raise RenderError(no_screen)
    if chosen := os.environ.get("MUJOCO_GL"):
        return chosen
    for backend in GL_BACKENDS:
        if _works(backend):
            os.environ["MUJOCO_GL"] = backend
            return backend
    raise RenderError(
        "MuJoCo clips need headless OpenGL, but neither EGL nor OSMesa works on this machine; "
        "install libegl1 and libgl1-mesa-dri, or libosmesa6"
    )


def with_install_command(message: str) -> str:
    """Return ``message``; if it reports that OpenGL is missing, append the install command."""
    is_missing = any(word in message for word in _ABOUT_OPENGL) and not why_no_screen()
    command = install_command() if is_missing else ""
    return f"{message}\n{command}" if command else message


def install_command() -> str:
    """Return the shell command that installs OpenGL; empty if the system has no apt-get."""
    if shutil.which("apt-get") is None:
        return ""
    command = f"apt-get update && apt-get install --yes {' '.join(PACKAGES)}"
    return command if os.geteuid() == 0 else f"sudo sh -c '{command}'"


def _works(backend: str) -> bool:
    environment = {**os.environ, "MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    probe = [sys.executable, "-c", _PROBE.format(backend)]
    return subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 0

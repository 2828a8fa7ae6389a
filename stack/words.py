"""Messages that the stack prints for the user, with commands that work in any shell."""

import shlex
import shutil
import sys
from pathlib import Path

from rich.markup import escape

from stack.site import ADMIN, Site


def welcome(site: Site) -> str:
    """Return the start message, with Rich markup: how to open the site, run ``teach`` and stop the stack."""
    folder = site.folder
    password = escape(_display_path(folder.admin_password))
    return (
        f"\nOpen   [bold]{site.url}[/]  as {ADMIN}; the password is in {password}\n"
        f"Teach  [bold]. {escape(_shell_path(folder.env))}[/]\n"
        f"       [bold]{escape(_teach_command())} -p human -e ShortHopper-v1 -n NAME "
        "--site_url $TEACHER_SITE_URL --storage $TEACHER_STORAGE[/]\n"
        f"Logs   {escape(_display_path(folder.logs))}\n"
        "Stop   Ctrl-C"
    )


def farewell(site: Site) -> str:
    """Return the final message: how to restart the stack or remove its data."""
    root, data = site.folder.path, site.postgres.data
    folders = [root] if data.is_relative_to(root) else [root, data]
    logs = _display_path(site.folder.logs)
    return (
        f"The same command restarts the stack with all its data; logs are in {logs}\n"
        f"To remove its data: rm -r {' '.join(map(_shell_path, folders))}"
    )


def _display_path(path: Path) -> str:
    """Return a path as a string; paths inside the working directory are made relative to it."""
    here = Path.cwd()
    return str(path.relative_to(here) if here in path.parents else path)


def _shell_path(path: Path) -> str:
    """Return a shell-quoted path, prefixed with ``./`` if it could be mistaken for a command or option."""
    word = _display_path(path)
    return shlex.quote(word if "/" in word and not word.startswith("-") else f"./{word}")


def _teach_command() -> str:
    """Return a shell command that runs this installation's ``teach``, even if it isn't on PATH."""
    beside = Path(sys.executable).with_name("teach")
    on_path = shutil.which("teach")
    if on_path is not None and beside.exists() and Path(on_path).samefile(beside):
        return "teach"
    return _shell_path(beside) if beside.exists() else f"{shlex.quote(sys.executable)} -m teacher.teach"

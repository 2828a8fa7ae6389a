"""Texts with commands for the user, which work in any shell."""

import shlex
import sys
from pathlib import Path

from rich.markup import escape

from stack.site import ADMIN, Site


def welcome(site: Site) -> str:
    """Return the text on opening the site and teaching on it, with rich's markup."""
    folder = site.folder
    password = escape(_short(folder.admin_password))
    return (
        f"\nOpen   [bold]{site.url}[/]  as {ADMIN}; the password is in {password}\n"
        f"Teach  [bold]. {escape(_typed(folder.env))}[/]\n"
        f"       [bold]{escape(_teach())} -p human -e ShortHopper-v1 -n NAME "
        "--site_url $TEACHER_SITE_URL --storage $TEACHER_STORAGE[/]\n"
        f"Logs   {escape(_short(folder.logs))}\n"
        "Stop   Ctrl-C"
    )


def farewell(site: Site) -> str:
    """Return the text on restarting the stack and removing its data."""
    root, data = site.folder.path, site.postgres.data
    folders = [root] if data.is_relative_to(root) else [root, data]
    return (
        f"The same command restarts it with all its data; logs are in {_short(site.folder.logs)}\n"
        f"To remove its data: rm -r {' '.join(map(_typed, folders))}"
    )


def _short(path: Path) -> str:
    """Return a path relative to the working directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if here in path.parents else path)


def _typed(path: Path) -> str:
    """Return a path quoted for a command line, so that it is neither looked up in PATH nor an option."""
    word = _short(path)
    return shlex.quote(word if "/" in word and not word.startswith("-") else f"./{word}")


def _teach() -> str:
    """Return the command ``teach`` of this installation, which may not be in a new shell's PATH."""
    beside = Path(sys.executable).with_name("teach")
    return _typed(beside) if beside.exists() else f"{shlex.quote(sys.executable)} -m teacher.teach"

"""What the user is told to type; it works in a shell that knows nothing of the project."""

import shlex
import sys
from pathlib import Path

from rich.markup import escape

from stack.site import ADMIN, Site


def welcome(site: Site) -> str:
    """How to open the site and how to teach on it, with rich's markup."""
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
    """What is left, and how to be rid of it."""
    root, data = site.folder.path, site.postgres.data
    folders = [root] if data.is_relative_to(root) else [root, data]
    return (
        f"The same command starts it again with all its data; logs are in {_short(site.folder.logs)}\n"
        f"To remove its data: rm -r {' '.join(map(_typed, folders))}"
    )


def _short(path: Path) -> str:
    """Relative where it is below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if here in path.parents else path)


def _typed(path: Path) -> str:
    """As a word of a command line, which a shell neither looks up in its PATH nor takes for an option."""
    word = _short(path)
    return shlex.quote(word if "/" in word and not word.startswith("-") else f"./{word}")


def _teach() -> str:
    """``teach`` of this installation: a new shell need not have it in its PATH."""
    beside = Path(sys.executable).with_name("teach")
    return _typed(beside) if beside.exists() else f"{shlex.quote(sys.executable)} -m teacher.teach"

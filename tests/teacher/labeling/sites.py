"""Read the files of a site's state folder, and end the site in several ways."""

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any


def announced(state_dir: Path) -> Any:
    """Return what a site says of itself; nothing where there never was one."""
    return json.loads((state_dir / "site" / "lock").read_text() or "{}")


def is_held(state_dir: Path) -> bool:
    """Return whether any process of a site is alive."""
    try:
        with (state_dir / "site" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def kill_site(state_dir: Path) -> None:
    """Kill the server with all its processes, of which it is the group's leader."""
    leader = announced(state_dir)["pid"]
    assert leader > 1, "the group 1 is every process there is"
    os.killpg(leader, signal.SIGKILL)

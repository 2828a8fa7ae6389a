"""Turns into a program that does not outlive the process that started it.

``python leash.py PARENT SIGNAL USER PROGRAM ARGUMENT...``: the kernel sends ``SIGNAL`` when the process
``PARENT`` has died, however it died. ``USER`` is whom the program runs as, ``-`` for whoever runs this.

A program of its own, not a function between fork and exec: that one must not be Python where threads run.
"""

import ctypes
import os
import pwd
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Never returns."""
    parent, number, user, *command = arguments
    if user != "-":
        _become(user)  # before the next step, which a change of user would undo
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):
        sys.exit("ended before it began: what started it is gone")
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


def _become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(sys.argv[1:])

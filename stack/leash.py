"""Runs a program that does not outlive the process that started it.

``python leash.py PARENT SIGNAL USER PROGRAM ARGUMENT...``: the kernel sends ``SIGNAL`` when the process
``PARENT`` ends in any way. ``USER`` is the user to run the program as, ``-`` for the current one.

This is a separate program, as Python code must not run between fork and exec in a process with threads.
"""

import ctypes
import os
import pwd
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Replace this process by the program."""
    parent, number, user, *command = arguments
    if user != "-":
        _become(user)  # first, as a change of user would undo the next step
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):
        sys.exit("not started: the parent process has ended")
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

"""Script that runs a program and has the kernel stop it when the parent process ends.

The command line is ``python leash.py PARENT SIGNAL USER PROGRAM ARGUMENT...``. ``PARENT`` is the parent's
process ID, ``SIGNAL`` the number of the signal to send to the program when the parent ends for any reason,
and ``USER`` the user to run the program as (``-`` for the current user).

This is a separate script because a multithreaded process must not run Python code between fork and exec.
"""

import ctypes
import os
import pwd
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Set the parent-death signal, and exec the program given in ``arguments``."""
    parent, number, user, *command = arguments
    if user != "-":
        _become(user)  # must come first, because changing the user clears the parent-death signal
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):
        sys.exit(f"{command[0]} was not started because the parent process has ended")
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell needed)
    except OSError as error:
        sys.exit(f"can't run {command[0]}: {error.strerror}")


def _become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(sys.argv[1:])

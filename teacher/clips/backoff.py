"""Exponential backoff between retries of a temporary failure."""

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from teacher.errors import SiteUnreachableError

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0

T = TypeVar("T")


class Backoff:
    """Waits 1, 2, 4 ... ``longest`` seconds between tries, each shortened at random by up to a half.

    The jitter keeps many runs from returning to a site at the same moment.

    Attributes:
        away: why and since when the other side is unreachable; None while it responds.
    """

    def __init__(self, longest: float = LONGEST_SECONDS) -> None:
        self._longest = longest
        self.away: str | None = None
        self._since = ""
        self._failures = 0
        self._next_try = 0.0
        self._random = random.Random()

    def seconds_left(self) -> float:
        """Return the seconds until the next try, 0 if it is due."""
        return max(0.0, self._next_try - time.monotonic())

    def failed(self, error: Exception) -> None:
        """Record a temporary failure."""
        if self.away is None:
            self._since = f"{datetime.now().astimezone():%H:%M:%S}"
        self.away = f"{error} (since {self._since})"
        seconds = min(self._longest, FIRST_SECONDS * 2.0**self._failures)
        self._next_try = time.monotonic() + seconds * self._random.uniform(0.5, 1.0)
        self._failures += 1

    def succeeded(self) -> None:
        """Record a success."""
        self.away = None
        self._failures = 0
        self._next_try = 0.0


def patiently(call: Callable[[], T], delays: Sequence[float], revive: Callable[[], None] | None = None) -> T:
    """Call until the site responds, sleeping between tries; for when nothing else can proceed.

    Args:
        call: makes one request.
        delays: seconds between tries.
        revive: called when the site does not respond, to restart it if it runs on this machine.

    Raises:
        SiteUnreachableError: the last try failed too.
    """
    for delay in delays:
        try:
            return call()
        except SiteUnreachableError:
            if revive is not None:
                revive()
            time.sleep(delay)
    return call()

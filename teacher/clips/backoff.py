"""Decide when to try again after a failure that may pass."""

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
    """Waits 1, 2, 4 ... ``longest`` seconds between tries, each shortened by up to a half at random.

    The randomness keeps many runs that lost one site from coming back to it in the same moment.

    Attributes:
        away: since when and why the other side does not answer; None while it does.
    """

    def __init__(self, longest: float = LONGEST_SECONDS) -> None:
        self._longest = longest
        self.away: str | None = None
        self._since = ""
        self._failures = 0
        self._next_try = 0.0
        self._random = random.Random()

    def seconds_left(self) -> float:
        """Return how long to wait before the next try; 0 where it may be made now."""
        return max(0.0, self._next_try - time.monotonic())

    def failed(self, error: Exception) -> None:
        """Note a try that failed for a reason that may pass."""
        if self.away is None:
            self._since = f"{datetime.now().astimezone():%H:%M:%S}"
        self.away = f"{error} (since {self._since})"
        seconds = min(self._longest, FIRST_SECONDS * 2.0**self._failures)
        self._next_try = time.monotonic() + seconds * self._random.uniform(0.5, 1.0)
        self._failures += 1

    def succeeded(self) -> None:
        """Note a try that went well."""
        self.away = None
        self._failures = 0
        self._next_try = 0.0


def patiently(call: Callable[[], T], delays: Sequence[float], revive: Callable[[], None] | None = None) -> T:
    """Call until the site answers, sleeping ``delays`` seconds in between; for when nothing else can go on.

    Args:
        call: one request.
        delays: seconds between two tries.
        revive: called when the site does not answer, to start it again where that is in our hands.

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

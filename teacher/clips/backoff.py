"""Exponential backoff between retries of a temporary failure."""

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from teacher.errors import SiteUnreachableError

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
_MOST_DOUBLINGS = 10  # enough for any ``longest``; an outage may last for any number of failures

T = TypeVar("T")


class Backoff:
    """Exponential backoff with jitter: waits of 1, 2, 4, ... up to ``longest`` seconds between attempts.

    Each wait is shortened at random by up to half, so that many runs don't retry at the same moment.

    Attributes:
        away: message with the most recent error and the time of the first failure since the last success;
            None unless the last attempt failed.
    """

    def __init__(self, longest: float = LONGEST_SECONDS) -> None:
        self._longest = longest
        self.away: str | None = None
        self._since = ""
        self._doublings = 0
        self._next_try = 0.0
        self._random = random.Random()

    def seconds_left(self) -> float:
        """Return the seconds until the next attempt; 0 if it is due now."""
        return max(0.0, self._next_try - time.monotonic())

    def failed(self, error: Exception) -> None:
        """Record a failed attempt, and schedule the next one."""
        if self.away is None:
            self._since = f"{datetime.now().astimezone():%H:%M:%S}"
        self.away = f"{error} (since {self._since})"
        seconds = min(self._longest, FIRST_SECONDS * 2.0**self._doublings)
        self._next_try = time.monotonic() + seconds * self._random.uniform(0.5, 1.0)
        self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)

    def succeeded(self) -> None:
        """Record a successful attempt, and reset the delay."""
        self.away = None
        self._doublings = 0
        self._next_try = 0.0


def call_with_retries(
    call: Callable[[], T], delays: Sequence[float], revive: Callable[[], None] | None = None
) -> T:
    """Make a request to the labeling site; if the site is unreachable, sleep and retry.

    Args:
        delays: seconds to sleep after each failed attempt; a final attempt follows the last delay.
        revive: function to call after each failed attempt, to restart a site that runs on this machine.
    """
    for delay in delays:
        try:
            return call()
        except SiteUnreachableError:
            if revive is not None:
                revive()
            time.sleep(delay)
    return call()

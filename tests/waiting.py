"""Wait for what happens in other threads and processes."""

import time
from collections.abc import Callable


def wait_until(
    holds: Callable[[], object],
    failure: Callable[[], object] = lambda: "it did not come about in time",
    *,
    seconds: float = 240.0,
    pause: float = 0.02,
) -> None:
    """Poll until a condition holds; fail with what ``failure`` returns after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, failure()
        time.sleep(pause)

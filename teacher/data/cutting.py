"""Cutting of episodes into segments."""

import numpy as np


class SegmentCutter:
    """Cuts one episode into segments while it grows.

    Segments are consecutive from a random offset, so that they never overlap and no phase of the episode
    always starts a segment. The offset is uniform below ``length``, as far as it leaves room for a segment.

    Args:
        length: steps per segment.
        random: draws the offset, once the episode is long enough.
        first: index of the first step that may be in a segment.

    Attributes:
        next_start: index of the first step that may be in a later segment.
    """

    def __init__(self, length: int, random: np.random.Generator, first: int = 0) -> None:
        self.next_start = first
        self._length = length
        self._random = random
        self._began = False

    def cut(self, steps: int, *, finished: bool) -> list[slice]:
        """Return the steps of each segment completed since the last call.

        Args:
            steps: number of steps in the episode so far.
            finished: the episode has ended.
        """
        length, left = self._length, steps - self.next_start
        if not self._began:
            if left < length or (not finished and left < 2 * length - 1):
                return []
            self.next_start += int(self._random.integers(min(length, left - length + 1)))
            self._began = True
        stops = range(self.next_start + length, steps + 1, length)
        self.next_start += length * len(stops)
        return [slice(stop - length, stop) for stop in stops]

"""Class that cuts growing episodes into fixed-length segments."""

import numpy as np


class SegmentCutter:
    """Cuts a growing episode into consecutive segments that never overlap.

    The first segment starts at a random offset below ``length``, so that segments don't always start at the
    same phase of an episode. In a short episode, the offset is limited so that at least one segment fits.

    Args:
        length: steps per segment.
        random: random number generator for the offset.
        first: index of the first step that a segment may contain.

    Attributes:
        next_start: index of the first step that the next segment may contain.
    """

    def __init__(self, length: int, random: np.random.Generator, first: int = 0) -> None:
        self.next_start = first
        self._length = length
        self._random = random
        self._began = False

    def cut(self, steps: int, *, finished: bool) -> list[slice]:
        """Return one slice of the episode's steps for each segment completed since the last call.

        Args:
            steps: number of steps in the episode so far.
            finished: True if the episode has ended.
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

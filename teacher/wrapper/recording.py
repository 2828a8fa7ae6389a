"""Segments from an environment that is stepped elsewhere, cut while its episodes go on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.segments import Segment, first_start
from teacher.envs.recipe import EpisodeRecipe

Space = spaces.Space[Any]


@dataclass(frozen=True)
class Source:
    """Where segments come from.

    Attributes:
        env_id: of the environment.
        observation_space: of what segments hold, which may be made of the environment's observations.
        action_space: of one environment.
        replayable: whether the seed of each episode is known, so that it can be played again.
        fps: frames a second of a clip; one frame is one step.
    """

    env_id: str
    observation_space: Space
    action_space: Space
    replayable: bool
    fps: int


@dataclass(frozen=True, eq=False)
class Step:
    """What came of one step.

    Attributes:
        action: as executed.
        observation: after the step, as segments hold it.
        reward: the environment's own.
        frame: a picture of what came of it, as a JPEG file, where one was taken.
    """

    action: Any
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    frame: bytes | None = None


class EpisodeCutter:
    """Cuts the episodes of one environment into segments as they grow.

    It holds the steps of two segments at most, however long an episode is, and of one that can be played
    again its actions. As in a :class:`~teacher.data.segments.SegmentPool`, segments follow one another from a
    random offset on.
    """

    def __init__(self, source: Source, length: int, random: np.random.Generator) -> None:
        self._source = source
        self._length = length
        self._random = random
        self._seed = 0
        self._began = False
        self._collecting = True
        self._actions: list[Any] = []  # of the whole episode, where that can be played again
        self._rewards: list[float] = []
        self._states: list[NDArray[Any]] = []
        self._frames: list[bytes | None] = []
        self._first = 0  # index in the episode of the first step held
        self._aligned = False  # whether a segment begins with that step
        self.steps = 0
        """Of the episode so far."""

    def begin(self, observation: Any, seed: int | None = None) -> None:
        """An episode begins, reset with ``seed``."""
        self._seed, self._began, self.steps = seed or 0, True, 0
        self._actions = []
        self._hold_from(0, observation)

    def leave(self) -> None:
        """Take no note of the rest of the episode, of which something is not known."""
        self._began = False

    def pause(self) -> None:
        """Cut no more segments, and forget the steps held."""
        self._collecting = False

    def resume(self) -> None:
        """Go on cutting, from the next step on."""
        self._collecting = True

    def add(self, step: Step) -> list[Segment]:
        """Take note of a step; the segments that are complete with it."""
        self.steps += 1
        if not self._began:
            return []
        self._actions.append(np.array(step.action, self._source.action_space.dtype))
        self._states.append(self._array(step.observation))
        self._rewards.append(step.reward)
        self._frames.append(step.frame)
        finished = step.terminated or step.truncated
        if not self._collecting:
            self._hold_from(self._first + len(self._rewards), step.observation)
        segments = self._cut(finished, step.terminated) if self._collecting else []
        self._began = not finished
        return segments

    def _cut(self, finished: bool, terminated: bool) -> list[Segment]:
        steps = len(self._rewards)
        start: int | None = 0
        if not self._aligned:
            start = first_start(self._length, steps, finished, self._random)
        if start is None:
            return []
        segments = []
        while start + self._length <= steps:
            stop = start + self._length
            segments.append(self._slice(start, stop, terminated and stop == steps))
            start = stop
        self._drop(start)
        return segments

    def _slice(self, start: int, stop: int, terminated: bool) -> Segment:
        """Of the steps held, those from ``start`` to ``stop``; with pictures where all were taken."""
        frames = tuple(frame for frame in self._frames[start:stop] if frame is not None)
        return Segment(
            self._recipe(start, stop),
            self._first + start if self._source.replayable else 0,
            np.stack(self._states[start:stop]),
            np.stack(self._actions[-len(self._rewards) :][start:stop]),
            np.array(self._rewards[start:stop], np.float64),
            self._states[stop],
            terminated,
            frames if len(frames) == stop - start else None,
        )

    def _recipe(self, start: int, stop: int) -> EpisodeRecipe:
        """What plays the episode up to the end of a segment; else the segment's actions alone."""
        actions = (
            self._actions[: self._first + stop] if self._source.replayable else self._actions[start:stop]
        )
        return EpisodeRecipe(self._source.env_id, {}, self._seed, np.stack(actions))

    def _hold_from(self, step: int, observation: Any) -> None:
        """Forget all steps before ``step``, before which ``observation`` came."""
        self._first, self._aligned = step, False
        self._rewards, self._frames = [], []
        self._states = [self._array(observation)]
        if not self._source.replayable:
            self._actions = []

    def _drop(self, count: int) -> None:
        """Forget the first steps held; a segment begins with the next one."""
        self._first, self._aligned = self._first + count, True
        del self._rewards[:count], self._frames[:count], self._states[:count]
        if not self._source.replayable:
            del self._actions[:count]

    def _array(self, observation: Any) -> NDArray[Any]:
        """A copy: some environments write into the array they returned before."""
        return np.array(observation, self._source.observation_space.dtype)

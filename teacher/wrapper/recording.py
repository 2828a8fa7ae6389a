"""Segments from an environment that is stepped elsewhere, cut while its episodes go on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.cutting import SegmentCutter
from teacher.data.segments import Segment
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


class SegmentRecorder:
    """Records the steps of one environment, and gives them as segments while its episodes grow.

    It holds the steps of two segments at most, however long an episode is, and of one that can be played
    again its actions. See :class:`SegmentCutter` for where segments begin.
    """

    def __init__(self, source: Source, length: int, random: np.random.Generator) -> None:
        self._source = source
        self._length = length
        self._random = random
        self._seed = 0
        self._began = False
        self._collecting = True
        self._cutter = SegmentCutter(length, random)
        self._actions: list[Any] = []  # of the whole episode, where that can be played again
        self._rewards: list[float] = []
        self._states: list[NDArray[Any]] = []
        self._frames: list[bytes | None] = []
        self._first = 0  # index in the episode of the first step held
        self.steps = 0
        """Of the episode so far."""

    def begin(self, observation: Any, seed: int | None = None) -> None:
        """Begin an episode, reset with ``seed``."""
        self._seed, self._began, self.steps = seed or 0, True, 0
        self._actions = []
        self._hold_from(observation)

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
        """Take note of a step, and return the segments that are complete with it."""
        self.steps += 1
        if not self._began:
            return []
        self._actions.append(np.array(step.action, self._source.action_space.dtype))
        self._states.append(self._array(step.observation))
        self._rewards.append(step.reward)
        self._frames.append(step.frame)
        finished = step.terminated or step.truncated
        self._began = not finished
        if not self._collecting:
            self._hold_from(step.observation)
            return []
        parts = self._cutter.cut(self.steps, finished=finished)
        segments = [self._segment(part, step.terminated and part.stop == self.steps) for part in parts]
        self._drop(self._cutter.next_start - self._first)
        return segments

    def _segment(self, part: slice, terminated: bool) -> Segment:
        """Return these steps of the episode; with pictures where all were taken."""
        held = slice(part.start - self._first, part.stop - self._first)
        replayable = self._source.replayable  # else the recipe is of the segment's actions alone
        actions = np.stack(self._actions[: part.stop] if replayable else self._actions[held])
        frames = tuple(frame for frame in self._frames[held] if frame is not None)
        return Segment(
            EpisodeRecipe(self._source.env_id, {}, self._seed, actions),
            part.start if replayable else 0,
            np.stack(self._states[held]),
            actions[-self._length :],
            np.array(self._rewards[held], np.float64),
            self._states[held.stop],
            terminated,
            frames if len(frames) == self._length else None,
        )

    def _hold_from(self, observation: Any) -> None:
        """Forget all steps so far, after which ``observation`` came, and begin to cut anew."""
        self._first, self._cutter = self.steps, SegmentCutter(self._length, self._random, self.steps)
        self._rewards, self._frames = [], []
        self._states = [self._array(observation)]
        if not self._source.replayable:
            self._actions = []

    def _drop(self, count: int) -> None:
        """Forget the first steps held."""
        self._first += count
        del self._rewards[:count], self._frames[:count], self._states[:count]
        if not self._source.replayable:
            del self._actions[:count]

    def _array(self, observation: Any) -> NDArray[Any]:
        """Return a copy: some environments write into the array they returned before."""
        return np.array(observation, self._source.observation_space.dtype)

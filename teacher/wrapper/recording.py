"""Recording of segments from an environment that another program steps, cut during its episodes."""

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
    """The environment that segments come from.

    Attributes:
        env_id: id of the environment.
        observation_space: space of the observations in segments, after any transform.
        action_space: action space of one environment.
        replayable: True if the seed of each episode is known, so that it can be replayed.
        fps: frames per second of a clip; one frame is one step.
    """

    env_id: str
    observation_space: Space
    action_space: Space
    replayable: bool
    fps: int


@dataclass(frozen=True, eq=False)
class Step:
    """One environment step.

    Attributes:
        action: action as executed.
        observation: observation after the step, transformed.
        reward: true reward.
        terminated: the episode ended in a terminal state.
        truncated: the episode was cut off, as by a time limit.
        frame: frame rendered after the step, as a JPEG file; None if none was captured.
    """

    action: Any
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    frame: bytes | None = None


class SegmentRecorder:
    """Records the steps of one environment and cuts them into segments during its episodes.

    It holds at most the steps of two segments, and of replayable episodes all actions.
    :class:`SegmentCutter` chooses where segments start.
    """

    def __init__(self, source: Source, length: int, random: np.random.Generator) -> None:
        self._source = source
        self._length = length
        self._random = random
        self._seed = 0
        self._began = False
        self._collecting = True
        self._cutter = SegmentCutter(length, random)
        self._actions: list[Any] = []  # of the whole episode if it is replayable
        self._rewards: list[float] = []
        self._states: list[NDArray[Any]] = []
        self._frames: list[bytes | None] = []
        self._first = 0  # index in the episode of the first step held
        self.steps = 0
        """Steps of the current episode."""

    def begin(self, observation: Any, seed: int | None = None) -> None:
        """Start an episode that was reset with ``seed``."""
        self._seed, self._began, self.steps = seed or 0, True, 0
        self._actions = []
        self._hold_from(observation)

    def leave(self) -> None:
        """Ignore the rest of the episode, which cannot be reproduced."""
        self._began = False

    def pause(self) -> None:
        """Stop cutting segments and drop the steps held."""
        self._collecting = False

    def resume(self) -> None:
        """Cut segments again, from the next step on."""
        self._collecting = True

    def add(self, step: Step) -> list[Segment]:
        """Record a step and return the segments that it completes."""
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
        """Return these steps of the episode as a segment, with frames if all were captured."""
        held = slice(part.start - self._first, part.stop - self._first)
        replayable = self._source.replayable  # otherwise the recipe holds only the segment's actions
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
        """Drop all steps held and start cutting at the current step, which ``observation`` follows."""
        self._first, self._cutter = self.steps, SegmentCutter(self._length, self._random, self.steps)
        self._rewards, self._frames = [], []
        self._states = [self._array(observation)]
        if not self._source.replayable:
            self._actions = []

    def _drop(self, count: int) -> None:
        """Drop the first ``count`` steps held."""
        self._first += count
        del self._rewards[:count], self._frames[:count], self._states[:count]
        if not self._source.replayable:
            del self._actions[:count]

    def _array(self, observation: Any) -> NDArray[Any]:
        """Return a copy, as some environments overwrite the array they returned."""
        return np.array(observation, self._source.observation_space.dtype)

"""Recording an environment's steps and cutting running episodes into segments."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.segments import Segment, SegmentCutter
from teacher.envs.recipe import EpisodeRecipe

Space = spaces.Space[Any]


@dataclass(frozen=True)
class Source:
    """Properties of the environment that segments are recorded from.

    Attributes:
        env_id: Gymnasium ID of the environment, or its class name.
        observation_space: space of the observations in segments, after any transform.
        replayable: True if the seed of every episode is known, so that episodes can be replayed.
        absorbs: True if an episode goes on after its end, with the final observation repeated.
        horizon: maximum number of steps in an episode, if the recorder repeats the final observation of
            episodes that terminate; None if the environment does so.
    """

    env_id: str
    observation_space: Space
    action_space: Space
    replayable: bool
    fps: int
    absorbs: bool = False
    horizon: int | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One environment step.

    Attributes:
        observation: transformed observation after the step.
        frame: JPEG image rendered after the step; None if no frame was captured.
    """

    action: Any
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    frame: bytes | None = None


class SegmentRecorder:
    """Records the steps of one environment and cuts them into segments while episodes are running.

    It buffers the steps of at most two segments and, if episodes can be replayed, all actions of the current
    episode. :class:`SegmentCutter` chooses where segments start. If the environment absorbs, segments end as
    in :meth:`SegmentPool.extend`.

    Args:
        random: random number generator used to draw the start step of each episode's first segment.
    """

    def __init__(self, source: Source, length: int, random: np.random.Generator) -> None:
        self._source = source
        self._length = length
        self._random = random
        self._seed = 0
        self._began = False
        self._collecting = True
        self._still = 0  # latest steps that did not change the observation
        self._cutter = SegmentCutter(length, random)
        self._actions: list[Any] = []  # of the whole episode if it can be replayed
        self._rewards: list[float] = []
        self._states: list[NDArray[Any]] = []
        self._frames: list[bytes | None] = []
        self._first = 0  # index in the episode of the first buffered step
        self.steps = 0
        """Number of steps taken in the current episode."""

    def begin(self, observation: Any, seed: int | None = None) -> None:
        """Start recording an episode whose reset used ``seed`` and returned ``observation``."""
        self._seed, self._began, self.steps, self._still = seed or 0, True, 0, 0
        self._actions = []
        self._hold_from(observation)

    def leave(self) -> None:
        """Stop recording the current episode, because it can't be replayed."""
        self._began = False

    def pause(self) -> None:
        """Stop cutting segments and drop the buffered steps."""
        self._collecting = False

    def resume(self) -> None:
        """Start cutting segments again, beginning with the next step."""
        self._collecting = True

    def add(self, step: Step) -> list[Segment]:
        """Record a step and, if it ends an absorbed episode, those after the end; return new segments."""
        if self._source.horizon is None or not step.terminated:
            return self._add(step)
        step = replace(step, terminated=False)
        count = min(self._length, self._source.horizon - self.steps - 1)
        frozen = [replace(step, reward=0.0, truncated=left == 0) for left in reversed(range(count))]
        return [segment for each in (step, *frozen) for segment in self._add(each)]

    def _add(self, step: Step) -> list[Segment]:
        self.steps += 1
        if not self._began:
            return []
        self._actions.append(np.array(step.action, self._source.action_space.dtype))
        self._states.append(self._array(step.observation))
        self._rewards.append(step.reward)
        self._frames.append(step.frame)
        finished = step.terminated or step.truncated
        self._began = not finished
        self._still = self._still + 1 if np.array_equal(self._states[-1], self._states[-2]) else 0
        if not self._collecting:
            self._hold_from(step.observation)
            return []
        spare = max(0, self._still - self._length) if self._source.absorbs else 0
        absorbed = self._source.absorbs and self._still >= self._length
        parts = self._cutter.cut(self.steps - spare, finished=finished or absorbed)
        segments = [self._segment(part, step.terminated and part.stop == self.steps) for part in parts]
        self._drop(self._cutter.next_start - self._first)
        return segments

    def _segment(self, part: slice, terminated: bool) -> Segment:
        """Return the slice ``part`` of the current episode as a segment, with frames if each step has one."""
        held = slice(part.start - self._first, part.stop - self._first)
        replayable = self._source.replayable  # otherwise the recipe contains only the segment's actions
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
        """Drop the buffered steps and restart segment cutting at the current ``observation``."""
        self._first, self._cutter = self.steps, SegmentCutter(self._length, self._random, self.steps)
        self._rewards, self._frames = [], []
        self._states = [self._array(observation)]
        if not self._source.replayable:
            self._actions = []

    def _drop(self, count: int) -> None:
        self._first += count
        del self._rewards[:count], self._frames[:count], self._states[:count]
        if not self._source.replayable:
            del self._actions[:count]

    def _array(self, observation: Any) -> NDArray[Any]:
        """Copy an observation, because some environments overwrite the array they returned."""
        return np.array(observation, self._source.observation_space.dtype)

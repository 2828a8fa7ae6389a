"""Statistics of a run's most recent finished episodes."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np

from agents.numerics.correlation import correlation, rank_correlation
from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.queries.judges import Value, true_return
from teacher.reward.predictor import RewardPredictor

EPISODES = 100
EPISODE_BYTES = 2**29
"""Memory limit, in bytes, for stored episodes; if they contain images, fewer than :data:`EPISODES` fit."""

Statistic = Literal["length", "true_return", "behavior", "success"]
"""Number of steps, true return, goal value if it is another one, and whether an episode succeeded."""


class EpisodeStatistics:
    """Keeps the most recent finished episodes and computes their statistics.

    Args:
        goal: function that returns the ground-truth score of an episode or segment: how well it does what
            labelers want. The default is the true return.
    """

    def __init__(self, goal: Value = true_return) -> None:
        self.goal = goal
        self.episodes: deque[Trajectory] = deque(maxlen=EPISODES)
        self._values = {name: deque[float](maxlen=EPISODES) for name in get_args(Statistic)}

    def add(self, finished: Iterable[Trajectory]) -> None:
        """Add finished episodes, dropping the oldest to stay within the limits on count and memory."""
        for episode in finished:
            self.episodes.append(episode)
            self._values["length"].append(len(episode) - episode.absorbed_steps)
            self._values["true_return"].append(episode.true_return)
            if self.has_own_goal:
                self._values["behavior"].append(self.goal(episode))
            if episode.succeeded is not None:
                self._values["success"].append(episode.succeeded)
        size = sum(episode.nbytes for episode in self.episodes)
        while size > EPISODE_BYTES:
            size -= self.episodes.popleft().nbytes

    @property
    def has_own_goal(self) -> bool:
        """True if the goal is something other than the true return."""
        return self.goal is not true_return

    def mean(self, name: Statistic) -> float:
        """Return the mean over the most recent episodes; NaN if none has finished or has such a value."""
        return float(np.mean(self._values[name])) if self._values[name] else math.nan

    def segment_correlation(self, predictor: RewardPredictor, segments: Sequence[Segment]) -> float:
        """Return the rank correlation between predicted returns and goal values of segments.

        Return NaN if there are fewer than two segments.
        """
        if len(segments) < 2:
            return math.nan
        return rank_correlation(predictor.segment_returns(segments), list(map(self.goal, segments)))

    def episode_correlation(self, predictor: RewardPredictor) -> float:
        """Return the Pearson correlation between predicted returns and goal values over stored episodes."""
        predicted = [predictor.step_rewards(episode).sum() for episode in self.episodes]
        return correlation(predicted, list(map(self.goal, self.episodes)))

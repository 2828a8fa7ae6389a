"""Statistics of the last finished episodes of a run."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.queries.judges import Value, true_return
from teacher.reward.correlation import correlation, rank_correlation
from teacher.reward.predictor import RewardPredictor

EPISODES = 100
EPISODE_BYTES = 2**29
"""Memory limit of the episodes kept in full; with images they are fewer than :data:`EPISODES`."""


class EpisodeStatistics:
    """Keeps the last finished episodes and means over them.

    Args:
        goal: function of an episode that the labelers want to be high; default the true return.

    Attributes:
        episodes: the last finished episodes, in full.
    """

    def __init__(self, goal: Value = true_return) -> None:
        self.goal = goal
        self.episodes: deque[Trajectory] = deque(maxlen=EPISODES)
        self._lengths: deque[int] = deque(maxlen=EPISODES)
        self._true_returns: deque[float] = deque(maxlen=EPISODES)
        self._behaviors: deque[float] = deque(maxlen=EPISODES)

    def add(self, finished: Iterable[Trajectory]) -> None:
        """Add finished episodes."""
        for episode in finished:
            self.episodes.append(episode)
            self._lengths.append(len(episode))
            self._true_returns.append(episode.true_return)
            if self.has_own_goal:
                self._behaviors.append(self.goal(episode))
        size = sum(episode.nbytes for episode in self.episodes)
        while size > EPISODE_BYTES:
            size -= self.episodes.popleft().nbytes

    @property
    def has_own_goal(self) -> bool:
        """True if the goal is not the true return."""
        return self.goal is not true_return

    @property
    def length(self) -> float:
        """Mean episode length; NaN before the first."""
        return _mean(self._lengths)

    @property
    def true_return(self) -> float:
        """Mean true return; NaN before the first episode."""
        return _mean(self._true_returns)

    @property
    def behavior(self) -> float:
        """Mean of the goal over episodes; NaN before the first, or if the goal is the true return."""
        return _mean(self._behaviors)

    def segment_correlation(self, predictor: RewardPredictor, segments: Sequence[Segment]) -> float:
        """Return Spearman's correlation of the segments' goal values and predicted sums; NaN below two."""
        if len(segments) < 2:
            return math.nan
        return rank_correlation(predictor.segment_returns(segments), list(map(self.goal, segments)))

    def episode_correlation(self, predictor: RewardPredictor) -> float:
        """Return Pearson's correlation of the last episodes' goal values and predicted returns."""
        predicted = [predictor.step_rewards(episode).sum() for episode in self.episodes]
        return correlation(predicted, list(map(self.goal, self.episodes)))


def _mean(values: deque[int] | deque[float]) -> float:
    return float(np.mean(values)) if values else math.nan

"""Random episodes of an environment, to choose the segment length and to detect early ends.

``teach`` and the wrappers use the same rule: by default, a segment lasts 1.5 seconds. If fewer than a fifth
of the random episodes are that long, the default is half their median length instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import gymnasium as gym

from teacher.envs.episodes import SeededResets, declares, episode_seeds
from teacher.errors import pluralize

TRIAL_EPISODES = 50
TRIAL_STEPS = 10_000
"""Total number of steps after which no new episode starts, because a few long episodes are enough."""
LIMIT = 1000
"""Number of steps after which a random episode is abandoned if there is no step limit."""
SEGMENT_SECONDS = 1.5
"""Default segment duration in seconds, used if episodes are long enough."""
_LONG_ENOUGH_SHARE = 0.2
_SHORTEST_LIMIT = 100


@dataclass(frozen=True)
class Trial:
    """Episode lengths of a random policy in an environment.

    Attributes:
        lengths: number of steps in each episode.
        horizon: maximum number of steps in an episode; None if no limit is known.
        fails: True if episodes earned less than 0 in total, and less in a step that terminated one than in
            the other steps on average.
    """

    lengths: Sequence[int]
    horizon: int | None
    fails: bool = False

    @property
    def median(self) -> int:
        """Return the median episode length in steps."""
        return int(median(self.lengths))

    @property
    def limit(self) -> int:
        """Return the maximum number of steps in an episode.

        If no limit is known, return the length of the longest episode, but at least 100 if the lengths vary.
        """
        longest = max(self.lengths)
        return self.horizon or (max(_SHORTEST_LIMIT, longest) if self.early else longest)

    @property
    def early(self) -> int:
        """Return the number of episodes that are shorter than ``horizon``.

        If no limit is known, count the episodes that are shorter than the longest one.
        """
        full = max(self.lengths) if self.horizon is None else self.horizon
        return sum(length < full for length in self.lengths)

    def holding(self, segment_length: int) -> int:
        """Return the number of episodes that are at least ``segment_length`` steps long."""
        return sum(length >= segment_length for length in self.lengths)

    def fits(self, segment_length: int) -> bool:
        """Return True if at least a fifth of the episodes are at least ``segment_length`` steps long."""
        return self.holding(segment_length) >= _LONG_ENOUGH_SHARE * len(self.lengths)

    def fitted(self, wanted: int) -> int:
        """Return the segment length ``wanted`` if it fits, else half the median episode length."""
        return wanted if self.fits(wanted) else max(1, self.median // 2)

    def told_misfit(self, segment_length: int) -> str:
        """Return an error message that says how many episodes are long enough for a segment."""
        return (
            f"a segment of {pluralize(segment_length, 'step')} fits into only "
            f"{self.holding(segment_length)} of {len(self.lengths)} random episodes "
            f"(median length: {pluralize(self.median, 'step')})"
        )

    def told(self, wanted: int) -> str:
        """Return a message with the chosen segment length and, if it is below ``wanted``, the reason."""
        length = self.fitted(wanted)
        if length == wanted:
            return f"Segments of {pluralize(length, 'step')}"
        return (
            f"Segments of {pluralize(length, 'step')}, half the median length of random episodes "
            f"({self.median}), because too few reach the usual {wanted} steps"
        )


def usual_length(seconds: float | None, fps: int) -> int:
    """Return the number of steps in a segment of ``seconds`` seconds, at one step per clip frame.

    If ``seconds`` is None, use 1.5 seconds.
    """
    return max(1, int((SEGMENT_SECONDS if seconds is None else seconds) * fps))


def of_fixed_length(horizon: int) -> Trial:
    """Create the :class:`Trial` for an environment whose episodes all have ``horizon`` steps."""
    return Trial([horizon] * TRIAL_EPISODES, horizon)


def never_terminates(env: gym.Env[Any, Any]) -> bool:
    """Return True if the environment's ``never_terminates`` says that only a time limit ends episodes."""
    return declares(env, "never_terminates")


def try_episodes(
    env: gym.Env[Any, Any],
    horizon: int | None,
    seed: int,
    most: int = LIMIT,
    tell: Callable[[int], None] = lambda tried: None,
) -> Trial:
    """Run 50 random episodes, or fewer if they reach a total of 10,000 steps.

    Args:
        env: an environment that is not used for anything else.
        horizon: maximum number of steps in an episode; None if no limit is known.
        seed: seed for the episodes and actions.
        most: maximum number of steps per episode; longer episodes are truncated.
        tell: progress callback, called with the number of completed episodes at the start (0) and after each
            episode.

    Raises:
        EnvironmentUnsuitableError: the environment's ``reset`` or ``step`` fails.
    """
    seeded = SeededResets(env, episode_seeds([seed], 0, 1))
    env.action_space.seed(seed)
    lengths: list[int] = []
    earned, last_rewards = 0.0, list[float]()
    tell(0)
    while len(lengths) < TRIAL_EPISODES and sum(lengths) < TRIAL_STEPS:
        seeded.reset()
        length, ended = 0, False
        while not ended and length < most:
            _, reward, terminated, truncated, _ = seeded.step(env.action_space.sample())
            length, ended, earned = length + 1, terminated or truncated, earned + float(reward)
            if terminated:
                last_rewards.append(float(reward))
        lengths.append(length)
        tell(len(lengths))
    others = sum(lengths) - len(last_rewards)
    fails = earned < 0 < min(others, len(last_rewards)) and (
        fmean(last_rewards) < (earned - sum(last_rewards)) / others
    )
    return Trial(lengths, horizon, fails)

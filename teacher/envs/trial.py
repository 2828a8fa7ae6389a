"""Random episodes of an environment, to find a suitable segment length and whether episodes end early.

``teach`` and the wrappers use the same rule. A segment without a given length takes 1.5 seconds; if fewer
than a fifth of the random episodes are that long, it takes half of their median length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import gymnasium as gym

from teacher.envs.episodes import SeededResets, episode_seeds
from teacher.errors import pluralize

TRIAL_EPISODES = 50
TRIAL_STEPS = 10_000
"""Steps after which no further episode starts: fewer long episodes are enough."""
LIMIT = 1000
"""Steps after which an episode without a limit is abandoned."""
SEGMENT_SECONDS = 1.5
"""Default length of a segment, if episodes are long enough."""
_LONG_ENOUGH_SHARE = 0.2
_SHORTEST_LIMIT = 100
_ENOUGH_REWARDS = 2  # distinct values


@dataclass(frozen=True)
class Trial:
    """The lengths of some random episodes.

    Attributes:
        lengths: steps of each.
        horizon: maximum steps of an episode; None if no limit is known.
        only_survival: all steps that did not end an episode had the same positive reward.
    """

    lengths: Sequence[int]
    horizon: int | None
    only_survival: bool = False

    @property
    def median(self) -> int:
        """Return the median length."""
        return int(median(self.lengths))

    @property
    def limit(self) -> int:
        """Return the maximum steps of an episode; without a limit the longest, or 100 if some end earlier."""
        longest = max(self.lengths)
        return self.horizon or (max(_SHORTEST_LIMIT, longest) if self.early else longest)

    @property
    def early(self) -> int:
        """Return how many episodes ended before the limit, or before the longest if there is none."""
        full = max(self.lengths) if self.horizon is None else self.horizon
        return sum(length < full for length in self.lengths)

    def holding(self, segment_length: int) -> int:
        """Return how many episodes are at least as long as a segment."""
        return sum(length >= segment_length for length in self.lengths)

    def fits(self, segment_length: int) -> bool:
        """Return True if at least a fifth of the episodes are as long as a segment."""
        return self.holding(segment_length) >= _LONG_ENOUGH_SHARE * len(self.lengths)

    def fitted(self, wanted: int) -> int:
        """Return the wanted segment length if it fits, else half the median episode length."""
        return wanted if self.fits(wanted) else max(1, self.median // 2)

    def told_misfit(self, segment_length: int) -> str:
        """Return a message about how few episodes a segment fits into."""
        return (
            f"a segment of {pluralize(segment_length, 'step')} fits into {self.holding(segment_length)} of "
            f"{len(self.lengths)} random episodes, whose median length is {self.median}"
        )

    def told(self, wanted: int) -> str:
        """Return a message with the default segment length, and why it is shorter than usual if it is."""
        length = self.fitted(wanted)
        if length == wanted:
            return f"Segments of {pluralize(length, 'step')}"
        return (
            f"Segments of {pluralize(length, 'step')}, half of a random episode's median length "
            f"({self.median}): too few are as long as the usual {wanted}"
        )


def usual_length(seconds: float | None, fps: int) -> int:
    """Return the steps of a segment of ``seconds``, by default 1.5, at the frame rate of clips."""
    return max(1, int((SEGMENT_SECONDS if seconds is None else seconds) * fps))


def of_fixed_length(horizon: int) -> Trial:
    """Return the trial of an environment whose episodes never end before ``horizon``."""
    return Trial([horizon] * TRIAL_EPISODES, horizon)


def never_terminates(env: gym.Env[Any, Any]) -> bool:
    """Return True if an environment declares that only a limit ends its episodes."""
    try:
        return bool(env.get_wrapper_attr("never_terminates"))
    except AttributeError:
        return False


def try_episodes(
    env: gym.Env[Any, Any],
    horizon: int | None,
    seed: int,
    most: int = LIMIT,
    tell: Callable[[int], None] = lambda tried: None,
) -> Trial:
    """Play 50 random episodes, or as many as fit into 10,000 steps.

    Args:
        env: one environment, not used for anything else.
        horizon: maximum steps of an episode; None if no limit is known.
        seed: for episodes and actions.
        most: steps after which an episode is abandoned.
        tell: called with the number of episodes tried, from 0.

    Raises:
        EnvironmentUnsuitableError: the environment fails in its methods.
    """
    seeded = SeededResets(env, episode_seeds([seed], 0, 1))
    env.action_space.seed(seed)
    lengths: list[int] = []
    rewards: set[float] = set()
    tell(0)
    while len(lengths) < TRIAL_EPISODES and sum(lengths) < TRIAL_STEPS:
        seeded.reset()
        length, ended = 0, False
        while not ended and length < most:
            _, reward, terminated, truncated, _ = seeded.step(env.action_space.sample())
            length, ended = length + 1, terminated or truncated
            if not terminated and len(rewards) < _ENOUGH_REWARDS:
                rewards.add(float(reward))
        lengths.append(length)
        tell(len(lengths))
    return Trial(lengths, horizon, len(rewards) == 1 and min(rewards) > 0)

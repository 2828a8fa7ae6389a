"""What random episodes of an environment tell: how long a segment may be, and whether episodes end early.

One rule for ``teach`` and for the wrappers. A segment whose length was not given takes 1.5 seconds; where
fewer than a fifth of the random episodes are as long, it takes half of their median length.
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
"""After which no further episode begins: of long ones fewer tell enough."""
LIMIT = 1000
"""Steps after which an episode is left that nothing limits."""
SEGMENT_SECONDS = 1.5
"""Of a segment whose length was not given, where episodes are long enough."""
_LONG_ENOUGH_SHARE = 0.2
_SHORTEST_LIMIT = 100
_ENOUGH_REWARDS = 2  # different ones


@dataclass(frozen=True)
class Trial:
    """The lengths of some random episodes.

    Attributes:
        lengths: steps of each.
        horizon: most steps of an episode; None where no limit is known.
        only_survival: whether each step that did not end an episode paid the same and more than nothing.
    """

    lengths: Sequence[int]
    horizon: int | None
    only_survival: bool = False

    @property
    def median(self) -> int:
        """The median length."""
        return int(median(self.lengths))

    @property
    def limit(self) -> int:
        """The most steps of an episode; where nothing limits them the longest, and 100 if some end before."""
        longest = max(self.lengths)
        return self.horizon or (max(_SHORTEST_LIMIT, longest) if self.early else longest)

    @property
    def early(self) -> int:
        """How many episodes ended before the others, or before the limit where there is one."""
        full = max(self.lengths) if self.horizon is None else self.horizon
        return sum(length < full for length in self.lengths)

    def holding(self, segment_length: int) -> int:
        """How many episodes are at least as long as a segment."""
        return sum(length >= segment_length for length in self.lengths)

    def fits(self, segment_length: int) -> bool:
        """Return whether at least a fifth of the episodes are as long as a segment."""
        return self.holding(segment_length) >= _LONG_ENOUGH_SHARE * len(self.lengths)

    def fitted(self, wanted: int) -> int:
        """Return the wanted length of a segment where it fits, else half the median episode."""
        return wanted if self.fits(wanted) else max(1, self.median // 2)

    def told_misfit(self, segment_length: int) -> str:
        """Say how few episodes a segment fits into."""
        return (
            f"a segment of {pluralize(segment_length, 'step')} fits into {self.holding(segment_length)} of "
            f"{len(self.lengths)} random episodes, whose median length is {self.median}"
        )

    def told(self, wanted: int) -> str:
        """Say how long segments are that were not given a length, and why where they are shorter."""
        length = self.fitted(wanted)
        if length == wanted:
            return f"Segments of {pluralize(length, 'step')}"
        return (
            f"Segments of {pluralize(length, 'step')}, half of a random episode's median length "
            f"({self.median}): too few are as long as the usual {wanted}"
        )


def usual_length(seconds: float | None, fps: int) -> int:
    """Return the steps of a segment of so many seconds, 1.5 without a number, at a clip's frame rate."""
    return max(1, int((SEGMENT_SECONDS if seconds is None else seconds) * fps))


def of_fixed_length(horizon: int) -> Trial:
    """Return what would be found of episodes that never end before ``horizon``."""
    return Trial([horizon] * TRIAL_EPISODES, horizon)


def never_terminates(env: gym.Env[Any, Any]) -> bool:
    """Return whether an environment says of itself that only a limit ends its episodes."""
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
    """Play 50 episodes of random actions, or as many as 10,000 steps make.

    Args:
        env: one environment, of no other use.
        horizon: most steps of an episode; None where no limit is known.
        seed: decides episodes and actions.
        most: steps after which an episode is left all the same.
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

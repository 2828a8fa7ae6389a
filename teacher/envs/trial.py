"""Random episodes of an environment, to choose the segment length and to detect early ends.

``teach`` and the wrappers use the same rule, :func:`choose_length`: by default, a segment lasts 1.5 seconds.
If fewer than a fifth of the random episodes are that long, the default is half their median length instead.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

import gymnasium as gym

from teacher.envs.atari import GAMES
from teacher.envs.episodes import SeededResets, episode_seeds
from teacher.envs.families import FAMILIES, NAMESPACE
from teacher.errors import EnvironmentUnsuitableError, TeacherError, pluralize
from teacher.settings.config import Filling

TRIAL_EPISODES = 50
TRIAL_STEPS = 10_000
"""Total number of steps after which no new episode starts, because a few long episodes are enough."""
LIMIT = 1000
"""Number of steps after which a random episode is abandoned if there is no step limit."""
SEGMENT_SECONDS = 1.5
"""Default segment duration in seconds, used if episodes are long enough."""
LEAKS = "the length of an episode leaks the reward"
"""Reason given in error messages about episodes that end early."""
_LONG_ENOUGH_SHARE = 0.2
_SHORTEST_LIMIT = 100
_UNHEALTHY = "terminate_when_unhealthy"
"""Argument that controls early termination in Gymnasium's MuJoCo environments and their subclasses."""
_ROOT = re.compile(r"(?:.*[:/])?(?P<name>\w+?)(?:NoFrameskip|Deterministic)?-v\d+")


@dataclass(frozen=True)
class Trial:
    """Episode lengths of a random policy in an environment.

    Attributes:
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


def usual_length(seconds: float | None, fps: int) -> int:
    """Return the number of steps in a segment of ``seconds`` seconds, at one step per clip frame.

    If ``seconds`` is None, use 1.5 seconds.
    """
    return max(1, int((SEGMENT_SECONDS if seconds is None else seconds) * fps))


def of_fixed_length(horizon: int) -> Trial:
    """Create the :class:`Trial` for an environment whose episodes all have ``horizon`` steps."""
    return Trial([horizon] * TRIAL_EPISODES, horizon)


Ends = Literal["refused", "filled", "accepted"]
"""Treatment of episodes that end early: an error, filled with more steps, or used as they are."""
Advice = tuple[str, Mapping[str, Any]]
"""Advice in words, and the names and values of the settings to change."""


@dataclass(frozen=True)
class Audience:
    """Says how to change what the rule objects to: with options of ``teach`` or arguments of the wrappers.

    Attributes:
        segments_of: says how to set the segment length to a number of steps.
        ways_out: says how to do without early ends, or with them.
    """

    env_id: str
    segments_of: Callable[[int], Advice]
    ways_out: Callable[[Trial], Advice]


def choose_length(
    trial: Trial, given: int | None, usual: int, ends: Ends, audience: Audience
) -> tuple[int, str, list[TeacherError]]:
    """Choose a segment length for an environment, or check the one ``given``.

    Returns:
        The length; if it was chosen because episodes are short, a message that says so, else an empty string;
        and the problems found.
    """
    problems: list[TeacherError] = []
    filled = of_fixed_length(trial.limit) if trial.early and ends != "accepted" else trial
    if trial.early and ends == "refused":
        before = "the others" if trial.horizon is None else f"step {trial.horizon}"
        early = f"{trial.early} of {len(trial.lengths)} random episodes of {audience.env_id}"
        ways, remedy = audience.ways_out(trial)
        problems.append(
            EnvironmentUnsuitableError(f"{early} end before {before}, and {LEAKS}: {ways}", remedy)
        )
    if given is not None:
        return given, "", [*problems, *misfits(filled, given, audience)]
    length = filled.fitted(usual)
    if length == usual:
        return length, "", problems
    note = (
        f"Segments of {pluralize(length, 'step')}, half the median length of random episodes "
        f"({filled.median}), because too few reach the usual {usual} steps"
    )
    return length, note, problems


def misfits(trial: Trial, length: int, audience: Audience) -> list[TeacherError]:
    """Return an error if too few episodes are long enough for a segment, or else an empty list."""
    if trial.fits(length):
        return []
    how, remedy = audience.segments_of(trial.median)
    told = (
        f"a segment of {pluralize(length, 'step')} fits into only {trial.holding(length)} of "
        f"{len(trial.lengths)} random episodes (median length: {pluralize(trial.median, 'step')})"
    )
    return [EnvironmentUnsuitableError(f"{told}: pass {how} or less", remedy)]


@dataclass(frozen=True)
class WithoutEnds:
    """Ways to avoid early termination in an environment.

    Attributes:
        env_id: ID of a different environment that has the same robot or game and never terminates early; None
            if there is none.
        arguments: ``make_env`` arguments that turn off early termination in the given environment; empty if
            there are none.
    """

    env_id: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def without_ends(env_id: str, env: gym.Env[Any, Any]) -> WithoutEnds:
    """Find ways to avoid early termination in an environment."""
    match = _ROOT.fullmatch(env_id)
    name = match["name"] if match else ""
    roots = {family.base_id.rpartition("-")[0]: task for task, family in FAMILIES.items()}
    roots.update({game: game for game in GAMES})
    other = f"{NAMESPACE}/{roots[name]}-v1" if name in roots else None
    accepted = inspect.signature(type(env.unwrapped).__init__).parameters
    return WithoutEnds(
        None if other == env_id else other, {_UNHEALTHY: False} if _UNHEALTHY in accepted else {}
    )


def fillings(trial: Trial, *, images: bool = False) -> tuple[Filling, Filling]:
    """Return both ``filling`` values of :class:`~teacher.envs.horizon.FixedHorizon`, the better one first.

    ``absorb`` is better in general: it shows the predictor the final observation, which ``restart`` replaces.
    But if ends are failures that cost reward, a predictor with few labels spreads that cost over other steps,
    and the agent then avoids any end, or seeks one. Predictors of images can't tell the steps after an end
    from those before. ``restart`` is better for the former, and for images if most episodes end in the first
    half of the step limit.
    """
    is_short = 2 * trial.median < trial.limit
    return ("restart", "absorb") if trial.fails or (images and is_short) else ("absorb", "restart")


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
        most: maximum number of steps per episode; longer episodes are truncated.
        tell: progress callback, called with the number of completed episodes at the start (0) and after each
            episode.
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

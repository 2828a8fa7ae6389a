"""Alternatives to environments whose episodes end early, and error messages about early ends."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from teacher.envs.atari import GAMES
from teacher.envs.families import FAMILIES, NAMESPACE
from teacher.envs.trial import Trial
from teacher.settings.config import Filling

_UNHEALTHY = "terminate_when_unhealthy"
"""Argument that controls early termination in Gymnasium's MuJoCo environments and their subclasses."""
_ROOT = re.compile(r"(?:.*[:/])?(?P<name>\w+?)(?:NoFrameskip|Deterministic)?-v\d+")
LEAKS = "the length of an episode leaks the reward"
"""Reason given in error messages about episodes that end early."""


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
    """Find ways to avoid early termination in an environment.

    Args:
        env_id: ID of the environment.
        env: an instance of the environment.
    """
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

    Args:
        trial: random episodes.
        images: True if observations are images.
    """
    is_short = 2 * trial.median < trial.limit
    return ("restart", "absorb") if trial.fails or (images and is_short) else ("absorb", "restart")


def told_early(env_id: str, trial: Trial) -> str:
    """Return the start of an error message that says how many random episodes ended early."""
    before = "the others" if trial.horizon is None else f"step {trial.horizon}"
    return f"{trial.early} of {len(trial.lengths)} random episodes of {env_id} end before {before}, and"

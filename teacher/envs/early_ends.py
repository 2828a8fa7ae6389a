"""Alternatives to environments whose episodes end early, and messages about them."""

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
"""Argument of Gymnasium's MuJoCo environments, and of derived ones, that controls early ends."""
_ROOT = re.compile(r"(?:.*[:/])?(?P<name>\w+?)(?:NoFrameskip|Deterministic)?-v\d+")
LEAKS = "the length of an episode leaks the reward"


@dataclass(frozen=True)
class WithoutEnds:
    """A variant of an environment that never ends early.

    Attributes:
        env_id: another environment with the same body or game; None if there is none.
        arguments: arguments that keep the environment itself from ending early.
    """

    env_id: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def without_ends(env_id: str, env: gym.Env[Any, Any]) -> WithoutEnds:
    """Return variants that never end early, for an environment that was already made."""
    match = _ROOT.fullmatch(env_id)
    name = match["name"] if match else ""
    roots = {family.base_id.rpartition("-")[0]: task for task, family in FAMILIES.items()}
    roots.update({game: game for game in GAMES})
    other = f"{NAMESPACE}/{roots[name]}-v1" if name in roots else None
    accepted = inspect.signature(type(env.unwrapped).__init__).parameters
    return WithoutEnds(
        None if other == env_id else other, {_UNHEALTHY: False} if _UNHEALTHY in accepted else {}
    )


def fillings(trial: Trial, *, people: bool) -> tuple[Filling, Filling]:
    """Return the ways to fill up shortened episodes, the more suitable one first.

    With short lives, ``absorb`` would be mostly standstill, so a restart suits better. But if only survival
    is rewarded, a function that judges by the reward would find all restarted lives alike.
    """
    is_short = 2 * trial.median < trial.limit
    restarts = is_short and (people or not trial.only_survival)
    return ("restart", "absorb") if restarts else ("absorb", "restart")


def told_early(env_id: str, trial: Trial) -> str:
    """Return a message about how many random episodes ended early."""
    before = "the others" if trial.horizon is None else f"step {trial.horizon}"
    return f"{trial.early} of {len(trial.lengths)} random episodes of {env_id} end before {before}, and"

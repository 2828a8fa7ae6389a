"""Wrapper that gives all episodes the same length by extending those that end early."""

from copy import deepcopy
from typing import Any, SupportsFloat, get_args

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from teacher.errors import EnvironmentUnsuitableError
from teacher.settings.config import Filling

KWARG = "fixed_horizon"
"""Keyword argument of ``make_env`` that selects the ``filling`` of :class:`FixedHorizon`."""
_SEED_BOUND = 2**31


def limit_of(env: gym.Env[Any, Any]) -> int | None:
    """Return the maximum number of steps in an episode; None if there is no known limit."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, FixedHorizon):
            return inner.horizon
        inner = inner.env
    return None if env.spec is None else env.spec.max_episode_steps


class FixedHorizon(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Gives every episode ``horizon`` steps, so that its length reveals nothing about the reward.

    ::

        env = FixedHorizon(gym.make("CartPole-v1"), "absorb")

    With ``absorb``, the rest of an episode that ends early repeats the final observation with a reward of 0,
    and actions have no effect. With ``restart``, the environment is reset within the episode: the new first
    observation replaces the final one, so the agent sees an ordinary step. Either way, an episode depends
    only on the seed of its reset and on its actions, so it can be replayed.

    So that an agent does not spend most of its steps in the final state, ``teach`` and the wrappers set
    ``max_frozen_steps`` or ``terminates`` in environments that are trained in. Episode lengths still reveal
    nothing: agents estimate the return after a truncation, and after a termination it is 0, which is then
    also the predicted reward of the final state.

    Args:
        horizon: steps per episode; None to use the environment's own limit.

    Attributes:
        max_frozen_steps: number of steps after its end at which an absorbed episode is truncated; None to
            continue until ``horizon``.

    Raises:
        EnvironmentUnsuitableError: ``horizon`` is None and the environment has no limit, or ``filling`` is
            invalid.
    """

    never_terminates = True

    def __init__(self, env: gym.Env[Any, Any], filling: Filling, horizon: int | None = None) -> None:
        RecordConstructorArgs.__init__(self, filling=filling, horizon=horizon)
        gym.Wrapper.__init__(self, env)
        if filling not in get_args(Filling):
            raise EnvironmentUnsuitableError(f"{KWARG}: must be absorb or restart, not {filling!r}")
        found = horizon or limit_of(env)
        if found is None or found < 1:
            raise EnvironmentUnsuitableError(
                f"{KWARG}: the environment has no step limit per episode; pass a horizon (number of steps)"
            )
        self.horizon: int = found
        self._restarts = filling == "restart"
        self.absorbs = filling == "absorb"
        self.max_frozen_steps: int | None = None
        self.terminates = False
        self._steps = 0
        self._frozen = 0  # steps since the end
        self._last: Any = None
        self._ended = False
        self._random = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; ``seed`` also determines the seeds of resets within it."""
        self._steps, self._frozen, self._ended = 0, 0, False
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; truncate the episode after ``horizon`` steps if it has not ended earlier."""
        self._steps += 1
        truncated = self._steps >= self.horizon
        if self._ended:
            self._frozen += 1
            truncated |= self._frozen == self.max_frozen_steps
            return deepcopy(self._last), 0.0, False, truncated, {}
        observation, reward, *ends, info = self.env.step(action)
        if any(ends) and self._restarts and not truncated:
            observation, _ = self.env.reset(seed=int(self._random.integers(_SEED_BOUND)))
        elif any(ends) and self.terminates and not truncated:
            return observation, reward, True, False, info
        elif any(ends):
            self._ended, self._last = True, deepcopy(observation)
        return observation, reward, False, truncated, info

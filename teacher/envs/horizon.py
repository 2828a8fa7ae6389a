"""Episodes of one length, made of episodes that end early: what comes after an end is filled up."""

from copy import deepcopy
from typing import Any, SupportsFloat, get_args

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from teacher.errors import EnvironmentUnsuitableError
from teacher.settings.config import Filling

KWARG = "fixed_horizon"
"""What names the way among the arguments that an environment is made with."""
_SEED_BOUND = 2**31


def limit_of(env: gym.Env[Any, Any]) -> int | None:
    """Return the most steps of an episode; None where no limit is known."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, FixedHorizon):
            return inner.horizon
        inner = inner.env
    return None if env.spec is None else env.spec.max_episode_steps


class FixedHorizon(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """An environment whose episodes are all ``horizon`` steps long, so that their length tells nothing.

    ::

        env = FixedHorizon(gym.make("CartPole-v1"), "absorb")

    With ``absorb``, the observation of an end stays, further actions do nothing, and the reward is 0. With
    ``restart``, the next life begins within the episode: the observation of an end is replaced by the first
    of the new life, which the agent cannot tell from a step. Either is a function of the seed of the
    episode's reset and its actions, so episodes replay.

    Args:
        env: any environment.
        filling: ``absorb`` or ``restart``.
        horizon: steps of an episode; the environment's own limit without it.

    Raises:
        EnvironmentUnsuitableError: there is no limit, or no such filling.
    """

    never_terminates = True

    def __init__(self, env: gym.Env[Any, Any], filling: Filling, horizon: int | None = None) -> None:
        RecordConstructorArgs.__init__(self, filling=filling, horizon=horizon)
        gym.Wrapper.__init__(self, env)
        if filling not in get_args(Filling):
            raise EnvironmentUnsuitableError(f"{KWARG}: expected absorb or restart, got {filling!r}")
        found = horizon or limit_of(env)
        if found is None or found < 1:
            raise EnvironmentUnsuitableError(
                f"{KWARG}: the environment has no limit on the steps of an episode; pass a horizon"
            )
        self.horizon: int = found
        self._restarts = filling == "restart"
        self._steps = 0
        self._last: Any = None
        self._ended = False
        self._random = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the seed decides all lives in it."""
        self._steps, self._ended = 0, False
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step; the episode is truncated with the last of ``horizon`` steps and ends in no other way."""
        self._steps += 1
        truncated = self._steps >= self.horizon
        if self._ended:
            return deepcopy(self._last), 0.0, False, truncated, {}
        observation, reward, *ends, info = self.env.step(action)
        if any(ends) and self._restarts and not truncated:
            observation, _ = self.env.reset(seed=int(self._random.integers(_SEED_BOUND)))
        elif any(ends):
            self._ended, self._last = True, deepcopy(observation)
        return observation, reward, False, truncated, info

"""Fixed-length episodes: fills up episodes that would end early."""

from copy import deepcopy
from typing import Any, SupportsFloat, get_args

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from teacher.errors import EnvironmentUnsuitableError
from teacher.settings.config import Filling

KWARG = "fixed_horizon"
"""Name of the filling among an environment's arguments."""
_SEED_BOUND = 2**31


def limit_of(env: gym.Env[Any, Any]) -> int | None:
    """Return the maximum steps of an episode; None if no limit is known."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, FixedHorizon):
            return inner.horizon
        inner = inner.env
    return None if env.spec is None else env.spec.max_episode_steps


class FixedHorizon(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """An environment whose episodes all have ``horizon`` steps, so that their length reveals nothing.

    ::

        env = FixedHorizon(gym.make("CartPole-v1"), "absorb")

    With ``absorb``, the final observation stays, further actions have no effect, and the reward is 0. With
    ``restart``, the next life starts within the episode: the final observation is replaced by the first one
    of the new life, which looks like a step to the agent. Both depend only on the seed of the episode's
    reset and its actions, so episodes can be replayed.

    Args:
        env: any environment.
        filling: ``absorb`` or ``restart``.
        horizon: steps of an episode; default: the environment's limit.

    Raises:
        EnvironmentUnsuitableError: there is no limit, or the filling is unknown.
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
                f"{KWARG}: the environment has no step limit per episode; pass a horizon"
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
        """Start an episode; the seed determines all lives in it."""
        self._steps, self._ended = 0, False
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step; the episode is truncated after ``horizon`` steps and ends in no other way."""
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

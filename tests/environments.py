"""Environments of a few lines, for tests that need nothing of an environment but one oddity."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray


class Stub(gym.Env[Any, Any]):
    """Observations are zeros, rewards are 0, and episodes end after ``length`` steps."""

    observation_space: Any = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)
    length, terminates = 0, False  # without a length they have no end

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        reward, ended = self.reward(action), self.time == self.length
        return self.observe(), reward, ended and self.terminates, ended and not self.terminates, {}

    def reward(self, action: Any) -> float:
        """Return the reward of a step, before the next observation is made."""
        return 0.0

    def observe(self) -> Any:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


class Sampled(Stub):
    """Observations drawn from a space."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def observe(self) -> Any:
        return self.observation_space.sample()


def registered(
    patch: pytest.MonkeyPatch, env_id: str, make: Callable[[], gym.Env[Any, Any]], limit: int
) -> str:
    """Register an environment for the rest of a test, and return its ID."""
    spec = EnvSpec(env_id, lambda **_: make(), max_episode_steps=limit, disable_env_checker=True)
    patch.setitem(gym.registry, env_id, spec)
    return env_id


def balance(observation: NDArray[Any]) -> int:
    """A scripted expert that keeps CartPole's pole up for all of 500 steps."""
    position, velocity, angle, spin = observation.tolist()
    return int(0.05 * position + 0.1 * velocity + angle + 0.3 * spin > 0)

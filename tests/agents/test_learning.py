"""Agents learn, with either kind of action, in seconds."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.ppo import PPO, PPOConfig


class Target(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """One step an episode: the action should be half of the observation."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.target = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.target, {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self.target, -float(np.square(action - self.target / 2).sum()), True, False, {}


def test_it_learns_a_continuous_target() -> None:
    envs = SyncVectorEnv([Target] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = PPO(envs, PPOConfig(num_steps=64, update_epochs=5, learning_rate=3e-3), seed=0)
    for _ in range(20):
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
    observations = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    error = agent.act(observations, deterministic=True) - observations / 2
    assert np.abs(error).mean() < 0.1, "an untrained policy, whose mean is 0, is off by 0.28"


def test_it_learns_to_balance_a_pole() -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
    agent = PPO(envs, PPOConfig(num_steps=128, update_epochs=5, learning_rate=1e-3), seed=0)
    ends, steps = 0, 0
    while agent.total_steps < 18_000:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
        if agent.total_steps > 14_000:
            ends, steps = ends + int(rollout.ended.sum()), steps + rollout.num_valid
    assert steps / max(1, ends) > 150, "a random policy stays up for 22 steps"

"""A reset policy: what starts over, and what is kept."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from agents.base import BaseAgent
from agents.ppo import PPO, PPOConfig
from agents.sac import SAC
from agents.sac_step import SACConfig
from agents.trpo import TRPO, TRPOConfig
from tests.agents.test_learning import Target

MAKERS: dict[str, Callable[[SyncVectorEnv], BaseAgent]] = {
    "ppo": lambda envs: PPO(envs, PPOConfig(num_steps=16), 3),
    "ppo-torch": lambda envs: PPO(envs, PPOConfig(num_steps=16), 3, allow_numpy=False),
    "trpo": lambda envs: TRPO(envs, TRPOConfig(num_steps=16), 3),
    "sac": lambda envs: SAC(envs, SACConfig(hidden_sizes=(16, 16), learning_starts=8, train_freq=8), 3),
}


def train(agent: Any) -> dict[str, float]:
    for _ in range(3):
        rollout = agent.collect()
        metrics: dict[str, float] = agent.update(rollout, rollout.rewards)
    return metrics


@pytest.mark.parametrize("name", MAKERS)
def test_parameters_and_optimizers_start_over_and_the_rest_is_kept(name: str) -> None:
    agent, new = (MAKERS[name](SyncVectorEnv([Target] * 4)) for _ in range(2))
    train(agent)
    before, initial = agent.state_dict(), new.state_dict()
    assert any((before["policy"][key] != initial["policy"][key]).any() for key in initial["policy"])

    agent.reset_policy()

    after = agent.state_dict()
    for key, value in initial["policy"].items():
        np.testing.assert_array_equal(after["policy"][key], value)
    assert after["normalizer"]["count"] == before["normalizer"]["count"]
    assert (after["random"], after["total_steps"]) == (before["random"], before["total_steps"])
    observations = np.array([[0.5], [-1.0]], np.float32)
    new.load_policy(after)
    np.testing.assert_array_equal(
        agent.act(observations, deterministic=True), new.act(observations, deterministic=True)
    )
    assert np.isfinite(list(train(agent).values())).all()


def test_sac_keeps_its_transitions_and_starts_over_with_its_entropy_coefficient() -> None:
    envs = SyncVectorEnv([Target] * 4)
    agent = SAC(
        envs, SACConfig(hidden_sizes=(16, 16), learning_starts=8, train_freq=8, ent_coef="auto_0.5"), 3
    )
    train(agent)
    stored, ent_coef = len(agent.buffer), agent._step.log_ent_coef.item()
    agent.reset_policy()
    assert len(agent.buffer) == stored > 0
    assert agent._step.log_ent_coef.item() == pytest.approx(np.log(0.5)) != ent_coef

"""Training the critic alone, before an update for rewards that it does not know."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO, PPOConfig
from agents.rollout import OnPolicyRollout, generalized_advantages
from agents.trpo import TRPO, TRPOConfig

MakeAgent = Callable[..., OnPolicyAgent]
NUM_STEPS, NUM_ENVS = 48, 2


def make_ppo(env_id: str = "Pendulum-v1", **settings: Any) -> PPO:
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)
    config = PPOConfig(num_steps=NUM_STEPS, minibatch_size=16, learning_rate=1e-3)
    return PPO(envs, config, seed=0, dtype=torch.float64, **settings)


def make_trpo(env_id: str = "Pendulum-v1", **settings: Any) -> TRPO:
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)
    config = TRPOConfig(num_steps=NUM_STEPS, minibatch_size=16)
    return TRPO(envs, config, seed=0, dtype=torch.float64, **settings)


def parameters(agent: OnPolicyAgent) -> dict[str, NDArray[Any]]:
    return {name: value.numpy().copy() for name, value in agent.policy.state_dict().items()}


def train_critic(agent: OnPolicyAgent, rollout: OnPolicyRollout, epochs: int) -> OnPolicyRollout:
    return agent._with_new_values(rollout, rollout.rewards, epochs)


@pytest.mark.parametrize("make", [make_ppo, make_trpo])
def test_both_ways_train_the_critic_alike_and_nothing_else(make: MakeAgent) -> None:
    agents = [make(allow_numpy=True), make(allow_numpy=False)]
    for agent in agents:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)  # so that there is momentum, which must not move the actor
    rollout = agents[0].collect()
    agents[1].collect()
    before = parameters(agents[0])
    revalued = [train_critic(agent, rollout, 3) for agent in agents]
    by_numpy, by_torch = map(parameters, agents)
    for name, value in by_numpy.items():
        np.testing.assert_allclose(value, by_torch[name], rtol=0, atol=1e-7, err_msg=name)
        moved = np.abs(value - before[name]).max()
        assert (moved > 1e-3) == name.startswith("critic"), name
    np.testing.assert_allclose(revalued[0].values, revalued[1].values, atol=1e-7)


@pytest.mark.parametrize("make", [make_ppo, make_trpo])
def test_values_move_to_the_returns_of_the_new_rewards(make: MakeAgent) -> None:
    agent = make()
    rollout = agent.collect()
    rewards = np.cos(rollout.observations[..., 0]) + 1.0

    def unexplained(valued: OnPolicyRollout) -> float:
        """Use returns that hardly depend on the critic."""
        returns = generalized_advantages(valued, rewards, 0.9, 1.0) + valued.values
        return float(np.square(returns - valued.values).mean())

    agent.config = replace(agent.config, gamma=0.9)
    assert unexplained(agent._with_new_values(rollout, rewards, 60)) < 0.2 * unexplained(rollout)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_all_values_are_computed_again(make_agent: Callable[..., PPO], mode: AutoresetMode) -> None:
    agent = make_agent(mode=mode)
    rollout = agent.collect()
    same = agent.sampler.revalued(rollout)
    for name in ("values", "bootstrap_values", "last_values"):
        np.testing.assert_array_equal(getattr(same, name), getattr(rollout, name))
    with torch.no_grad():
        list(agent.policy.critic.parameters())[-1].add_(10.0)
    shifted = agent.sampler.revalued(rollout)
    cut_off = rollout.truncated & ~rollout.terminated
    assert cut_off.any()
    np.testing.assert_allclose(shifted.values, rollout.values + 10, rtol=1e-5)
    np.testing.assert_allclose(shifted.last_values, rollout.last_values + 10, rtol=1e-5)
    np.testing.assert_allclose(shifted.bootstrap_values, rollout.bootstrap_values + 10 * cut_off, rtol=1e-5)


def test_an_update_estimates_advantages_by_the_critic_that_was_trained() -> None:
    agent, other = make_ppo(), make_ppo()
    rollout = agent.collect()
    other.collect()
    agent.update(rollout, rollout.rewards, critic_epochs=4)
    other.update(train_critic(other, rollout, 4), rollout.rewards)
    for name, value in parameters(agent).items():
        np.testing.assert_array_equal(value, parameters(other)[name])


def test_rewards_are_scaled_once_for_several_critic_updates(make_agent: Callable[..., PPO]) -> None:
    states = []
    for epochs in (0, 5):
        agent = make_agent(normalize_rewards=True)
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards, critic_epochs=epochs)
        states.append(agent.reward_scaler.state_dict())
    assert str(states[0]) == str(states[1])

"""The torch module of a policy against the agent that it was made from."""

import numpy as np
import pytest
import torch

from agents.portable import PortablePolicy
from tests.models import AGENTS, OTHER_AGENTS, AgentCase

CASES = {**AGENTS, **OTHER_AGENTS}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_acts_like_the_agent(case: AgentCase) -> None:
    agent, observations = case.agent(), case.observations()
    expected = agent.act(observations, deterministic=True)
    with torch.no_grad():
        actions, *_ = PortablePolicy(agent)(torch.from_numpy(observations))
    assert actions.numpy().dtype == expected.dtype
    np.testing.assert_allclose(actions.numpy(), expected, atol=1e-5)
    assert len(np.unique(expected, axis=0)) > 1  # not the same action everywhere


@pytest.mark.parametrize("case", [AGENTS["ppo"], AGENTS["sac"]], ids=["ppo", "sac"])
def test_mean_and_std_are_those_of_sampled_actions(case: AgentCase) -> None:
    agent = case.agent()
    observation = case.observations()[:1]
    policy = PortablePolicy(agent)
    assert policy.outputs == ("action", "mean", "std")
    with torch.no_grad():
        _, mean, std = policy(torch.from_numpy(observation))
    sampled = torch.from_numpy(agent.act(np.repeat(observation, 4000, axis=0), deterministic=False))
    noise = torch.randn(4000, mean.shape[1], generator=torch.Generator().manual_seed(1))
    gaussian = mean + std * noise
    low, high = torch.from_numpy(case.action_space.low), torch.from_numpy(case.action_space.high)  # type: ignore[attr-defined]
    if case is AGENTS["sac"]:
        gaussian = gaussian.tanh() * (high - low) / 2 + (high + low) / 2
    expected = torch.minimum(torch.maximum(gaussian.view(sampled.shape), low), high)
    torch.testing.assert_close(sampled.mean(0), expected.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(sampled.std(0), expected.std(0), atol=0.1, rtol=0)

"""The two forward passes of a policy against each other, and its initial parameters."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from agents.policy import MLPActorCritic

BOX = gymnasium.spaces.Box(-0.4, 0.4, (2, 3), np.float64)
DISCRETE = gymnasium.spaces.Discrete(4, start=-2)


def make_policy(space: gymnasium.Space[object], seed: int = 0) -> MLPActorCritic:
    return MLPActorCritic(5, space, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("space", [BOX, DISCRETE])
def test_both_forward_passes_agree(space: gymnasium.Space[object]) -> None:
    policy = make_policy(space)
    for parameter in policy.actor.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    inputs = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    expected = policy.actor(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(policy.actor_function()(inputs), expected, rtol=1e-5, atol=1e-7)


def test_weights_are_orthogonal_with_the_gain_of_their_place() -> None:
    policy = make_policy(BOX)
    for network, output_gain in ((policy.actor, 0.01), (policy.critic, 1.0)):
        layers = [module for module in network if isinstance(module, nn.Linear)]
        for layer, gain in zip(layers, [2**0.5, 2**0.5, output_gain], strict=True):
            weight = layer.weight.detach()
            short = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(short, gain**2 * torch.eye(len(short)), atol=1e-5, rtol=0)
            assert not layer.bias.any()


def test_initialisation_depends_on_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = make_policy(BOX, 1), make_policy(BOX, 1), make_policy(BOX, 2)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.actor.parameters()), next(other.actor.parameters()))

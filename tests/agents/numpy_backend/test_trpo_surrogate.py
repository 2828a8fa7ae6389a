"""Test what TRPO's surrogate computes in NumPy, beside what it computes in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from agents.distributed import ALONE
from agents.numpy_backend import NumpySurrogate
from agents.policy import MLPActorCritic
from agents.rollout import Batch
from agents.trpo import TorchSurrogate


@pytest.mark.parametrize("space", [Box(-1, 1, (3,), np.float32), Discrete(4)])
def test_the_surrogate_by_hand_is_that_of_torch(space: Any) -> None:
    """Objective, gradient and a Fisher product at some parameters; objective and divergence at others."""
    rng, size = np.random.default_rng(0), 50
    policy = MLPActorCritic(5, space, torch.Generator().manual_seed(0)).double()
    for parameter in policy.parameters():
        parameter.data += torch.from_numpy(0.2 * rng.normal(size=parameter.shape))
    actions = rng.integers(4, size=size) if isinstance(space, Discrete) else rng.normal(size=(size, 3))
    numbers = rng.normal(size=(4, size))
    arrays = Batch._make([rng.normal(size=(size, 5)), actions, *numbers, np.ones(size, bool)])
    tensors = Batch._make([*map(torch.from_numpy, arrays[:-1]), arrays.own])
    # The parameters of the distribution come last in torch, and first by hand.
    own = sum(parameter.numel() for parameter in policy.head.parameters())
    direction = 0.1 * rng.normal(size=own + sum(parameter.numel() for parameter in policy.actor.parameters()))

    by_torch = TorchSurrogate(policy, damping=0.1, ent_coef=0.3)
    objective, gradient, fisher = by_torch.linearize(tensors, ALONE)
    product, origin = fisher(torch.from_numpy(direction)), by_torch.parameters()
    there = by_torch.move_to(origin + torch.from_numpy(direction))
    by_torch.move_to(origin)

    by_hand = NumpySurrogate(policy, damping=0.1, ent_coef=0.3)
    numpy_objective, numpy_gradient, numpy_fisher = by_hand.linearize(arrays, ALONE)
    numpy_direction = np.roll(direction, own)
    assert numpy_objective == pytest.approx(objective, rel=1e-12)
    for found, expected in ((numpy_gradient, gradient), (numpy_fisher(numpy_direction), product)):
        np.testing.assert_allclose(np.roll(found, -own), expected.numpy(), rtol=1e-9, atol=1e-12)
        assert abs(expected).min() < 1e-3 < abs(expected).max()
    assert by_hand.move_to(by_hand.parameters() + numpy_direction) == pytest.approx(there, rel=1e-12)
    assert min(map(abs, there)) > 1e-4

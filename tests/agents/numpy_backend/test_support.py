"""The NumPy backend: when it is used and loaded, the memory it needs, and TRPO's surrogate beside torch's."""

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from agents.distributed import ALONE
from agents.numpy_backend import NumpySurrogate, supports
from agents.numpy_backend.parameters import ParameterVector
from agents.numpy_backend.tanh_network import TanhNetwork
from agents.pixels import ImageActorCritic
from agents.policy import MLPActorCritic
from agents.rollout import Batch
from agents.trpo import TorchSurrogate
from tests.waiting import completed

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("space", "supported"),
    [(Box(-1, 1, (2,), np.float32), True), (Discrete(3), True), (MultiDiscrete([2, 3]), False)],
)
def test_vectors_with_one_action_distribution_are_supported(space: Any, supported: bool) -> None:
    assert supports(MLPActorCritic(4, space, torch.Generator())) is supported


def test_images_are_not_supported() -> None:
    assert not supports(ImageActorCritic((1, 36, 36), Discrete(2), torch.Generator(), share_trunk=True))


def test_modules_are_loaded_when_they_are_first_used() -> None:
    program = (
        "import sys, agents.ppo; print([m for m in sys.modules if m.startswith('agents.numpy_backend.')])"
    )
    done = completed([sys.executable, "-c", program], check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_batches_of_many_sizes_share_their_memory() -> None:
    """Each rollout has a different number of dummy transitions."""
    policy = MLPActorCritic(5, Discrete(2), torch.Generator().manual_seed(0))
    parameters = ParameterVector(dict(policy.named_parameters()))
    network, of_one_size = (TanhNetwork(parameters, "actor") for _ in range(2))
    inputs = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    for size in (0, 300):  # a rank may have nothing of a minibatch
        network.forward(inputs[:size])
    tracemalloc.start()
    for size in range(300, 100, -1):
        outputs = network.forward(inputs[:size])
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated < 1e6, "memory of their own would be 30 MB"
    np.testing.assert_array_equal(outputs, of_one_size.forward(inputs[:101]))


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

"""The memory that a network needs."""

import tracemalloc

import numpy as np
import torch
from gymnasium.spaces import Discrete

from agents.numpy_backend.parameters import ParameterVector
from agents.numpy_backend.tanh_network import TanhNetwork
from agents.policy import MLPActorCritic


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

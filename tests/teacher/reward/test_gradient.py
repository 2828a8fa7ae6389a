"""Gradients of a minibatch: by hand, by torch, and in parts."""

import pytest
import torch
from torch import Tensor

from teacher.reward.gradient import PairBatch, add_gradient, add_gradient_by_hand, batch_loss
from teacher.reward.network import RewardEnsemble

LENGTH = 7


def random_batch(step_weights: Tensor) -> PairBatch:
    random = torch.Generator().manual_seed(3)
    numbers = torch.rand(2, 3, 5, generator=random, dtype=torch.float64)
    inputs = torch.randn(3, 5, 2, LENGTH, 4, generator=random, dtype=torch.float64)
    return PairBatch(inputs, step_weights, numbers[0], numbers[1])


@pytest.fixture
def network() -> RewardEnsemble:
    return RewardEnsemble(3, 4, 16, torch.Generator().manual_seed(1)).double()


def gradients(network: RewardEnsemble) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in network.parameters()]


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("each_its_own", [False, True])
def test_by_hand_and_by_torch_they_are_equal(
    network: RewardEnsemble, noise: float, each_its_own: bool
) -> None:
    shape = (3, 5, 2, LENGTH) if each_its_own else (LENGTH,)
    batch = random_batch(torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    add_gradient(network, batch, noise)
    expected = gradients(network)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    add_gradient_by_hand(network, batch, noise)
    for found, wanted in zip(gradients(network), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    add_gradient_by_hand(network, batch, noise)
    for found, wanted in zip(gradients(network), expected, strict=True):
        torch.testing.assert_close(found, 2 * wanted, rtol=1e-9, atol=1e-12)


def test_they_are_the_slope_of_the_loss(network: RewardEnsemble) -> None:
    """Against finite differences, which know nothing of either derivation."""
    batch = random_batch(torch.ones(LENGTH, dtype=torch.float64))
    add_gradient(network, batch, 0.1)
    for parameter, gradient in zip(network.parameters(), gradients(network), strict=True):
        flat, step = parameter.data.view(-1), 1e-6
        for index in range(0, len(flat), 29):
            losses = []
            for direction in (step, -2 * step, step):
                flat[index] += direction
                losses.append(batch_loss(network, batch, 0.1).item())
            slope = (losses[0] - losses[1]) / (2 * step)
            assert float(gradient.view(-1)[index]) == pytest.approx(slope, abs=1e-7)

"""Gradient of the loss on a minibatch, by autograd or by hand-derived formulas.

:func:`add_gradient` uses autograd and works for every network. :func:`add_gradient_by_hand` computes the same
gradient for the default MLPs. It is faster for small updates, in which autograd's bookkeeping takes a third
of the time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from teacher.reward.loss import preference_loss, preference_slope
from teacher.reward.network import RewardEnsemble, RewardNetwork, difference_of_sums, signed_weights

_LEAK = 0.01  # torch's default slope of leaky ReLU for negative inputs


@dataclass(frozen=True, eq=False)
class PairBatch:
    """A minibatch of training pairs, with different pairs for each member.

    Attributes:
        inputs: ``(members, pairs, 2, length, ...)``, standardized network inputs.
        step_weights: weight of each step's reward in its segment's return; broadcasts to
            ``(members, pairs, 2, length)``.
        values: ``(members, pairs)``, target probability that the first segment is preferred.
        weights: ``(members, pairs)``, weight of each pair's loss.
    """

    inputs: Tensor
    step_weights: Tensor
    values: Tensor
    weights: Tensor


def batch_loss(network: RewardNetwork, batch: PairBatch, noise: float) -> Tensor:
    """Return the weighted sum of all pairs' losses; ``noise`` is the assumed fraction of random labels."""
    logits = network.logits(batch.inputs, batch.step_weights)
    return (batch.weights * preference_loss(logits, batch.values, noise)).sum()


def add_gradient(network: RewardNetwork, batch: PairBatch, noise: float) -> None:
    """Add the gradient of :func:`batch_loss` to each parameter's ``grad``, using autograd."""
    batch_loss(network, batch, noise).backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def add_gradient_by_hand(network: RewardEnsemble, batch: PairBatch, noise: float) -> None:
    """Add the gradient of :func:`batch_loss` to each parameter's ``grad``, without autograd.

    Supports only ensembles without dropout.
    """
    members, pairs, _, length, size = batch.inputs.shape
    inputs = batch.inputs.view(members, -1, size)
    bias_0, bias_1, _ = network.biases
    weight_0, weight_1, weight_2 = network.weights
    first = functional.leaky_relu_(torch.baddbmm(bias_0, inputs, weight_0))
    second = functional.leaky_relu_(torch.baddbmm(bias_1, first, weight_1))
    signed = signed_weights(batch.step_weights, (members, pairs, 2, length)).view(members, pairs, -1)
    difference = difference_of_sums(second, signed)
    logits = torch.bmm(difference, weight_2).squeeze(-1)
    slopes = (batch.weights * preference_slope(logits, batch.values, noise)).unsqueeze(-1)

    _gradient(weight_2).baddbmm_(difference.transpose(1, 2), slopes)
    # Gradient with respect to the second layer's pre-activations, except for the factor ``weight_2``.
    by_second = _leaky_relu_backward_((slopes * signed).view(members, -1, 1), second, into=second)
    shared = weight_2.transpose(1, 2)
    _gradient(weight_1).addcmul_(torch.bmm(first.transpose(1, 2), by_second), shared)
    _gradient(bias_1).addcmul_(by_second.sum(dim=1, keepdim=True), shared)
    by_first = torch.bmm(by_second, (weight_1 * shared).transpose(1, 2))
    _leaky_relu_backward_(by_first, first, into=by_first)
    _gradient(weight_0).baddbmm_(inputs.transpose(1, 2), by_first)
    _gradient(bias_0).add_(by_first.sum(dim=1, keepdim=True))


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None  # noqa: S101 (set by FlatParameters)
    return parameter.grad


def _leaky_relu_backward_(by_outputs: Tensor, outputs: Tensor, into: Tensor) -> Tensor:
    by_inputs: Tensor = torch.ops.aten.leaky_relu_backward.grad_input(
        by_outputs, outputs, _LEAK, True, grad_input=into
    )
    return by_inputs

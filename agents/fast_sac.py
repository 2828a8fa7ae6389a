"""Hand-derived gradients of SAC's losses, equal to those of autograd but faster."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from agents.sac_step import Minibatch, SACConfig, SACStep, Sampled
from agents.squashed_gaussian import EPSILON, LOG_STD_BOUNDS, SquashedActorCritic, TwinCritic

_Gradients = Sequence[Tensor]


def _tanh_backward(gradient: Tensor, output: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.tanh_backward(gradient, output)
    return result


def _relu_backward(gradient: Tensor, output: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.threshold_backward(gradient, output, 0)
    return result


class _Torch:
    """Matrix products of torch."""

    @staticmethod
    def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the matrix product of two tensors, or of two stacks of them."""
        return torch.matmul(a, b, out=out)

    @staticmethod
    def affine(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the matrix product plus a bias that is broadcast over rows."""
        return torch.addmm(bias, a, b) if a.ndim == 2 else torch.baddbmm(bias, a, b)


class _NumPy:
    """Matrix products of NumPy, for tensors on a CPU.

    On AMD processors, where torch's MKL does not use AVX-512, NumPy's OpenBLAS is twice as fast with one
    thread. With several, it is much slower.
    """

    @staticmethod
    def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the matrix product of two tensors, or of two stacks of them."""
        into = None if out is None else out.numpy()
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy(), out=into))

    @staticmethod
    def affine(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the matrix product plus a bias that is broadcast over rows."""
        return _NumPy.product(a, b).add_(bias)


_Matrices = type[_Torch] | type[_NumPy]


def _matrices_for(parameters: Tensor) -> _Matrices:
    """Return the faster matrix products: NumPy's on a CPU if it uses OpenBLAS with one thread."""
    threads = [pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"]
    return _NumPy if parameters.device.type == "cpu" and threads and max(threads) == 1 else _Torch


_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"tanh": _tanh_backward, "relu": _relu_backward}
_FORWARD: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}


class _FastTwinCritic:
    """Forward and backward pass of :class:`TwinCritic`, which owns the parameters.

    Args:
        critic: the networks.
        matrices: matrix products to use.
        gradients: tensors to write the parameters' gradients to, weights before biases.
    """

    def __init__(self, critic: TwinCritic, matrices: _Matrices, gradients: _Gradients | None = None) -> None:
        self._matrices = matrices
        self._forward, self._backward = _FORWARD[critic.activation], _BACKWARD[critic.activation]
        self._weights = [weight.detach() for weight in critic.weights]
        self._biases = [bias.detach() for bias in critic.biases]
        if gradients is not None:
            count = len(self._weights)
            self._weight_gradients, self._bias_gradients = gradients[:count], gradients[count:]
        self._hidden: list[Tensor] = []

    def __call__(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both Q-values ``(2, n)``, and keep activations for the gradients."""
        inputs = torch.cat([observations, actions], 1)
        joined = self._matrices.affine(self._biases[0].flatten(), inputs, self._weights[0].flatten(1))
        hidden = self._forward(joined).view(len(inputs), 2, -1).transpose(0, 1)
        self._hidden = [inputs, hidden]
        for weight, bias in zip(self._weights[1:-1], self._biases[1:-1], strict=True):
            hidden = self._forward(self._matrices.affine(bias, hidden, weight))
            self._hidden.append(hidden)
        values: Tensor = (hidden * self._weights[-1]).sum(2).add_(self._biases[-1].squeeze(2))
        return values

    def write_gradients(self, outputs: Tensor) -> None:
        """Write the parameters' gradients, given those of the outputs ``(2, n)`` of the last call."""
        self._matrices.product(outputs.unsqueeze(1), self._hidden[-1], self._weight_gradients[-1])
        torch.sum(outputs, 1, keepdim=True, out=self._bias_gradients[-1].squeeze(2))
        gradient = self._backward(outputs.unsqueeze(2) * self._weights[-1], self._hidden[-1])
        for layer in range(len(self._weights) - 2, 0, -1):
            self._matrices.product(
                self._hidden[layer].transpose(1, 2), gradient, self._weight_gradients[layer]
            )
            torch.sum(gradient, 1, keepdim=True, out=self._bias_gradients[layer])
            gradient = self._of_layer_below(gradient, layer)
        joined = self._joined(gradient)
        self._matrices.product(self._hidden[0].T, joined, self._weight_gradients[0].flatten(1))
        torch.sum(joined, 0, out=self._bias_gradients[0].flatten())

    def action_gradients(self, outputs: Tensor, size: int) -> Tensor:
        """Return the gradients of the actions ``(n, size)``, given those of the last call's outputs."""
        gradient = self._backward(outputs.unsqueeze(2) * self._weights[-1], self._hidden[-1])
        for layer in range(len(self._weights) - 2, 0, -1):
            gradient = self._of_layer_below(gradient, layer)
        return self._matrices.product(self._joined(gradient), self._weights[0][-size:].flatten(1).T)

    def _of_layer_below(self, gradient: Tensor, layer: int) -> Tensor:
        below = self._matrices.product(gradient, self._weights[layer].transpose(1, 2))
        return self._backward(below, self._hidden[layer])

    def _joined(self, gradient: Tensor) -> Tensor:
        """Return the first layer's gradients of both networks, ``(n, 2 * units)``."""
        return gradient.transpose(0, 1).reshape(gradient.shape[1], -1)


class FastSACStep(SACStep):
    """:class:`SACStep` with hand-derived gradients."""

    def __init__(self, policy: SquashedActorCritic, config: SACConfig) -> None:
        super().__init__(policy, config)
        self._matrices = _matrices_for(self._critic.parameters.values)
        self._fast_critic = _FastTwinCritic(policy.critic, self._matrices, self._critic.parameters.gradients)
        self._fast_target = _FastTwinCritic(policy.target, self._matrices)
        layers = [module for module in policy.actor if isinstance(module, nn.Linear)]
        self._layers = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
        self._forward, self._backward = _FORWARD[policy.activation], _BACKWARD[policy.activation]

    @torch.no_grad()
    def _take(self, batch: Minibatch, noise: Tensor, updates_target: bool) -> dict[str, Tensor]:
        return super()._take(batch, noise, updates_target)

    def _target_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        return self._fast_target(observations, actions).amin(0)

    def _sample(self, observations: Tensor, noise: Tensor) -> Sampled:
        hidden, outputs = [], observations
        for weight, bias in self._layers[:-1]:
            outputs = self._forward(self._matrices.affine(bias, outputs, weight.T))
            hidden.append(outputs)
        weight, bias = self._layers[-1]
        means, log_stds = self._matrices.affine(bias, outputs, weight.T).chunk(2, 1)
        clamped = log_stds.clamp(*LOG_STD_BOUNDS)
        scaled = clamped.exp().mul_(noise)
        actions = (means + scaled).tanh_()
        slopes = 1 - actions.square()
        log_probs = (noise.square().mul_(-0.5) - clamped - (slopes + EPSILON).log_()).sum(1)
        log_probs -= 0.5 * math.log(2 * math.pi) * actions.shape[1]
        return Sampled(actions, log_probs, (*hidden, log_stds, scaled, slopes))

    def _step_critic(self, batch: Minibatch, targets: Tensor) -> Tensor:
        errors = self._fast_critic(batch.observations, batch.actions) - targets
        self._fast_critic.write_gradients(errors / len(targets))
        self._critic.step(self._config.learning_rate)
        return 0.5 * errors.square().mean(1).sum()

    def _step_actor(self, observations: Tensor, sampled: Sampled, ent_coef: Tensor) -> Tensor:
        actions, log_probs, (*hidden, log_stds, scaled, slopes) = sampled
        n, size = actions.shape
        q = self._fast_critic(observations, actions)
        first_is_less = q[0] <= q[1]
        of_q = torch.stack([first_is_less, ~first_is_less]).to(q.dtype).mul_(-1 / n)
        weight = ent_coef / n
        # Of actions; then of the Gaussian's sample before squashing; then of the actor's outputs.
        gradient = self._fast_critic.action_gradients(of_q, size)
        gradient += actions / (slopes + EPSILON) * (2 * weight)
        gradient *= slopes
        of_log_stds = gradient * scaled - weight
        of_log_stds *= (log_stds >= LOG_STD_BOUNDS[0]) & (log_stds <= LOG_STD_BOUNDS[1])
        self._write_actor_gradients([observations, *hidden], torch.cat([gradient, of_log_stds], 1))
        self._actor.step(self._config.learning_rate)
        return (ent_coef * log_probs - q.amin(0)).mean()

    def _write_actor_gradients(self, inputs: list[Tensor], gradient: Tensor) -> None:
        """Write the actor's gradients, given the inputs of its layers and the gradient of its outputs."""
        gradients = self._actor.parameters.gradients
        for layer in range(len(inputs) - 1, -1, -1):
            self._matrices.product(gradient.T, inputs[layer], gradients[2 * layer])
            torch.sum(gradient, 0, out=gradients[2 * layer + 1])
            if layer:
                gradient = self._backward(
                    self._matrices.product(gradient, self._layers[layer][0]), inputs[layer]
                )

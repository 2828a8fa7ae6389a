"""The gradient step of PPO on two small tanh networks, by hand in numpy.

:class:`agents.ppo.TorchStep` is the algorithm. This is the same arithmetic for where networks and minibatches
are so small that torch spends most of its time on being called: tanh layers on the CPU.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from agents.distributed import ALONE, Ranks
from agents.policy import ActorCritic, CategoricalHead, GaussianHead, TanhActorCritic

if TYPE_CHECKING:
    from agents.on_policy import Batch
    from agents.ppo import PPOConfig

Array = NDArray[np.floating[Any]]

BETAS, EPSILON = (0.9, 0.999), 1e-5
"""Of Adam; the epsilon is that of Stable-Baselines3."""


class TanhNetwork:
    """Forward and backward pass of linear layers with tanh between them.

    Args:
        layers: weight ``(outputs, inputs)`` and bias ``(outputs,)`` of each.
        gradients: the same shapes, written by :meth:`backward`.
    """

    def __init__(self, layers: list[tuple[Array, Array]], gradients: list[tuple[Array, Array]]) -> None:
        self._layers = layers
        self._gradients = gradients
        self._buffers: dict[int, tuple[list[Array], list[Array]]] = {}
        self._inputs: list[Array] = []

    def forward(self, inputs: Array) -> Array:
        """Outputs ``(batch, outputs)`` for ``(batch, inputs)``."""
        self._hidden, self._deltas = self._buffers_for(len(inputs))
        self._inputs = [inputs]
        for (weight, bias), hidden in zip(self._layers[:-1], self._hidden, strict=True):
            np.matmul(self._inputs[-1], weight.T, out=hidden)
            np.add(hidden, bias, out=hidden)
            np.tanh(hidden, out=hidden)
            self._inputs.append(hidden)
        weight, bias = self._layers[-1]
        outputs: Array = self._inputs[-1] @ weight.T
        outputs += bias
        return outputs

    def backward(self, deltas: Array) -> None:
        """Gradients of the parameters, given that of the loss by the outputs; spends the forward pass."""
        for index in range(len(self._layers) - 1, -1, -1):
            inputs, (weight_gradient, bias_gradient) = self._inputs[index], self._gradients[index]
            np.matmul(deltas.T, inputs, out=weight_gradient)
            np.add.reduce(deltas, axis=0, out=bias_gradient)
            if index:
                before = self._deltas[index - 1]
                np.matmul(deltas, self._layers[index][0], out=before)
                np.square(inputs, out=inputs)  # tanh' = 1 - tanh^2
                np.subtract(1.0, inputs, out=inputs)
                before *= inputs
                deltas = before

    def _buffers_for(self, size: int) -> tuple[list[Array], list[Array]]:
        if size not in self._buffers:
            shapes = [(size, len(bias)) for _, bias in self._layers[:-1]]
            dtype = self._layers[0][0].dtype
            self._buffers[size] = ([np.empty(s, dtype) for s in shapes], [np.empty(s, dtype) for s in shapes])
        return self._buffers[size]


class _Gaussian:
    """Log-probabilities under a diagonal normal distribution, and their gradient."""

    def __init__(self, log_std: Array, gradient: Array) -> None:
        self._log_std, self._gradient = log_std, gradient

    def log_probs(self, means: Array, actions: Array) -> Array:
        """Both are ``(batch, size)``."""
        self._inverse_std = np.exp(-self._log_std)
        self._standardized = (actions - means) * self._inverse_std
        self._log_scale = np.add.reduce(self._log_std) + 0.5 * len(self._log_std) * math.log(2 * math.pi)
        log_probs: Array = -0.5 * np.einsum("ij,ij->i", self._standardized, self._standardized)
        log_probs -= self._log_scale
        return log_probs

    def entropy(self, size: int) -> float:
        """The sum of the entropies of the batch, divided by ``size``."""
        share = len(self._standardized) / size
        return share * (float(self._log_scale) + 0.5 * len(self._log_std))

    def backward(self, by_log_probs: Array, by_entropy: float, size: int) -> Array:
        """The gradient by the means; that by the log standard deviations is written.

        ``by_entropy`` is the gradient by what :meth:`entropy` returns for ``size``.
        """
        weighted = by_log_probs[:, None] * self._standardized
        np.einsum("ij,ij->j", weighted, self._standardized, out=self._gradient)
        self._gradient += by_entropy * (len(weighted) / size) - np.add.reduce(by_log_probs)
        by_means: Array = weighted * self._inverse_std
        return by_means


class _Categorical:
    """Log-probabilities under a softmax, and their gradient."""

    def log_probs(self, logits: Array, actions: NDArray[np.integer[Any]]) -> Array:
        """``logits`` ``(batch, choices)``, ``actions`` ``(batch,)``."""
        shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
        self._all = shifted - np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True))
        self._chosen = (np.arange(len(actions)), actions)
        chosen: Array = self._all[self._chosen]
        return chosen

    def entropy(self, size: int) -> float:
        return float(-(np.exp(self._all) * self._all).sum(1).sum() / size)

    def backward(self, by_log_probs: Array, by_entropy: float, size: int) -> Array:
        """The gradient by the logits."""
        probs = np.exp(self._all)
        by_logits: Array = -by_log_probs[:, None] * probs
        by_logits[self._chosen] += by_log_probs
        if by_entropy:
            entropies = -(probs * self._all).sum(1, keepdims=True)
            by_logits -= (by_entropy / size) * probs * (self._all + entropies)
        return by_logits


class FusedStep:
    """The gradient step of one agent: both networks, the loss, the clipping of gradients and Adam.

    Args:
        policy: linear layers and tanh on the CPU; its parameters become views of one flat array.
        config: of the agent.
    """

    def __init__(self, policy: ActorCritic, config: "PPOConfig") -> None:
        self._config = config
        self._tensors = dict(policy.named_parameters())
        self._flat = np.concatenate([tensor.detach().numpy().ravel() for tensor in self._tensors.values()])
        self._gradient, self._scratch = np.zeros_like(self._flat), np.empty_like(self._flat)
        self._mean, self._variance = np.zeros_like(self._flat), np.zeros_like(self._flat)
        self._steps = 0
        values, gradients = self._views(self._flat), self._views(self._gradient)
        for name, tensor in self._tensors.items():
            tensor.data = torch.from_numpy(values[name])
        self._actor = TanhNetwork(_layers("actor", values), _layers("actor", gradients))
        self._critic = TanhNetwork(_layers("critic", values), _layers("critic", gradients))
        self._density: _Gaussian | _Categorical = (
            _Gaussian(values["head.log_std"], gradients["head.log_std"])
            if isinstance(policy.head, GaussianHead)
            else _Categorical()
        )

    def __call__(
        self, batch: "Batch", learning_rate: float, ranks: Ranks = ALONE, *, report: bool = True
    ) -> Mapping[str, float] | None:
        """As :class:`agents.ppo.TorchStep`."""
        config, size = self._config, batch.size
        values = self._critic.forward(batch.observations)[:, 0]
        log_probs = self._density.log_probs(self._actor.forward(batch.observations), batch.actions)
        log_ratio = log_probs - batch.log_probs
        ratio = np.exp(log_ratio)
        approx_kl = np.add.reduce(ratio - 1.0 - log_ratio) / size
        if config.target_kl is not None:
            of_all = np.array(approx_kl)
            ranks.sum(of_all)
            if float(of_all) > 1.5 * config.target_kl:
                return None

        centered = batch.advantages - np.add.reduce(batch.advantages) / size
        standardized = centered / (math.sqrt(centered @ centered / (size - 1)) + 1e-8)
        advantages = standardized[batch.own]
        gains = advantages * ratio
        bounded = advantages * np.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
        # Where the bounded gain is the smaller one, it does not depend on the policy.
        by_log_probs = gains * (gains <= bounded)
        by_log_probs /= -size
        errors, moved = self._value_errors(values, batch)
        metrics: Mapping[str, float] = {}
        if report:
            metrics = {
                "policy_loss": -float(np.add.reduce(np.minimum(gains, bounded)) / size),
                "value_loss": float(errors @ errors / size),
                "entropy": self._density.entropy(size),
                "approx_kl": float(approx_kl),
                "clip_fraction": float((np.abs(ratio - 1) > config.clip_coef).sum() / size),
            }
        self._actor.backward(self._density.backward(by_log_probs, -config.ent_coef, size))
        self._critic.backward((errors * moved * (2.0 * config.vf_coef / size))[:, None])
        ranks.sum(self._gradient)
        self._adam(learning_rate)
        return metrics

    def _value_errors(self, values: Array, batch: "Batch") -> tuple[Array, Any]:
        """Errors of the (clipped) values, and where these depend on the critic at all."""
        limit = self._config.clip_coef_vf
        if limit is None:
            return values - batch.returns, 1.0
        change = values - batch.values
        return batch.values + change.clip(-limit, limit) - batch.returns, np.abs(change) <= limit

    def _adam(self, learning_rate: float) -> None:
        """Adam (Kingma and Ba 2015, algorithm 1) on the gradient, clipped to its joint norm."""
        gradient, scratch = self._gradient, self._scratch
        scale = self._config.max_grad_norm / (math.sqrt(gradient @ gradient) + 1e-6)
        if scale < 1.0:
            gradient *= scale
        self._steps += 1
        np.subtract(gradient, self._mean, out=scratch)
        scratch *= 1.0 - BETAS[0]
        self._mean += scratch
        np.square(gradient, out=scratch)
        scratch -= self._variance
        scratch *= 1.0 - BETAS[1]
        self._variance += scratch
        np.sqrt(self._variance, out=scratch)
        scratch /= math.sqrt(1.0 - BETAS[1] ** self._steps)
        scratch += EPSILON
        np.divide(self._mean, scratch, out=scratch)
        scratch *= learning_rate / (1.0 - BETAS[0] ** self._steps)
        self._flat -= scratch

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`agents.ppo.TorchStep.state_dict`."""
        means, variances = self._views(self._mean), self._views(self._variance)
        return {
            str(index): {
                "step": np.array(self._steps, np.float32),
                "exp_avg": means[name].copy(),
                "exp_avg_sq": variances[name].copy(),
            }
            for index, name in enumerate(self._tensors)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`agents.ppo.TorchStep.load_state_dict`."""
        means, variances = self._views(self._mean), self._views(self._variance)
        for index, name in enumerate(self._tensors):
            moments = state.get(str(index), {"step": 0, "exp_avg": 0.0, "exp_avg_sq": 0.0})
            means[name][...], variances[name][...] = moments["exp_avg"], moments["exp_avg_sq"]
            self._steps = int(moments["step"])

    def _views(self, flat: Array) -> dict[str, Array]:
        """The parts of a flat array that belong to each parameter."""
        ends = np.cumsum([tensor.numel() for tensor in self._tensors.values()])
        parts = np.split(flat, ends[:-1])
        return {
            name: part.reshape(tensor.shape)
            for (name, tensor), part in zip(self._tensors.items(), parts, strict=True)
        }


def can_fuse(policy: torch.nn.Module) -> bool:
    """Whether :class:`FusedStep` can train a policy."""
    return (
        isinstance(policy, TanhActorCritic)
        and isinstance(policy.head, GaussianHead | CategoricalHead)
        and all(parameter.device.type == "cpu" for parameter in policy.parameters())
    )


def _layers(network: str, arrays: Mapping[str, Array]) -> list[tuple[Array, Array]]:
    names = [name for name in arrays if name.startswith(f"{network}.")]
    return [(arrays[weight], arrays[bias]) for weight, bias in zip(names[::2], names[1::2], strict=True)]

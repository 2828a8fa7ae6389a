"""Gradients of distributions, and the gradient step of PPO on two small tanh networks, by hand in numpy.

:class:`agents.ppo.TorchStep` is the algorithm. This is the same arithmetic for where networks and minibatches
are so small that torch spends most of its time on being called: tanh layers on the CPU.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from agents.batch import Batch
from agents.critic import FusedCritic
from agents.distributed import ALONE, Ranks
from agents.flat import Adam, Array, FlatParameters
from agents.policy import ActorCritic, CategoricalHead, GaussianHead, Head, TanhActorCritic
from agents.tanh_network import TanhNetwork

if TYPE_CHECKING:
    from agents.ppo import PPOConfig


class GaussianDensity:
    """Log-probabilities under a diagonal normal distribution, and their derivatives."""

    def __init__(self, log_std: Array, gradient: Array) -> None:
        self._log_std, self._gradient = log_std, gradient

    def log_probs(self, means: Array, actions: Array) -> Array:
        """``means`` ``(batch, size)``, ``actions`` ``(batch, *space.shape)``."""
        self._inverse_std = np.exp(-self._log_std)
        self._standardized = (actions.reshape(means.shape) - means) * self._inverse_std
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

    def curvature(self, change: Array, direction: Mapping[str, Array], size: int) -> Array:
        """The sum of the Fisher matrices of the batch, divided by ``size``, times a change of parameters.

        Args:
            change: of the means.
            direction: the change by the parameter's name.
            size: of the batch of all ranks.

        Returns:
            The component by the means; that by the log standard deviations is written.
        """
        np.multiply(direction["head.log_std"], 2.0 * len(change) / size, out=self._gradient)
        by_means: Array = change * (np.square(self._inverse_std) / size)
        return by_means

    def snapshot(self, means: Array) -> tuple[Array, ...]:
        """The distributions as they are now, for :meth:`kl` later."""
        return means, self._log_std.copy()

    def kl(self, old: tuple[Array, ...], means: Array) -> Array:
        """As :meth:`agents.policy.GaussianHead.kl`."""
        old_means, old_log_std = old
        log_ratio = self._log_std - old_log_std
        standardized = (means - old_means) * np.exp(-old_log_std)
        kl: Array = (0.5 * (np.exp(2.0 * log_ratio) + np.square(standardized) - 1.0) - log_ratio).sum(1)
        return kl


class CategoricalDensity:
    """Log-probabilities under a softmax, and their derivatives."""

    def log_probs(self, logits: Array, actions: NDArray[np.integer[Any]]) -> Array:
        """``logits`` ``(batch, choices)``, ``actions`` ``(batch,)``."""
        self._all = _log_softmax(logits)
        self._chosen = (np.arange(len(actions)), actions)
        chosen: Array = self._all[self._chosen]
        return chosen

    def entropy(self, size: int) -> float:
        """As :meth:`GaussianDensity.entropy`."""
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

    def curvature(self, change: Array, direction: Mapping[str, Array], size: int) -> Array:
        """As :meth:`GaussianDensity.curvature`, for logits; there are no further parameters."""
        weighted = np.exp(self._all) * change
        weighted -= np.exp(self._all) * np.add.reduce(weighted, axis=1, keepdims=True)
        weighted /= size
        return weighted

    def snapshot(self, logits: Array) -> tuple[Array, ...]:
        """As :meth:`GaussianDensity.snapshot`."""
        return (_log_softmax(logits),)

    def kl(self, old: tuple[Array, ...], logits: Array) -> Array:
        """As :meth:`agents.policy.CategoricalHead.kl`."""
        log_probs = _log_softmax(logits)
        kl: Array = (np.exp(log_probs) * (log_probs - old[0])).sum(1)
        return kl


Density = GaussianDensity | CategoricalDensity


class FusedStep:
    """The gradient step of one agent: both networks, the loss, the clipping of gradients and Adam.

    Args:
        policy: linear layers and tanh on the CPU; its parameters become views of one flat array.
        config: of the agent.
    """

    def __init__(self, policy: ActorCritic, config: "PPOConfig") -> None:
        self._config = config
        self._parameters = FlatParameters(dict(policy.named_parameters()))
        self._adam = Adam(self._parameters)
        self._actor = TanhNetwork(self._parameters, "actor")
        self._critic = TanhNetwork(self._parameters, "critic")
        self._density = density_of(policy.head, self._parameters)

    def __call__(
        self, batch: Batch, learning_rate: float, ranks: Ranks = ALONE, *, report: bool = True
    ) -> Mapping[str, float] | None:
        """As :class:`agents.ppo.TorchStep`."""
        config, size = self._config, batch.size
        values = self._critic.forward(batch.observations)[:, 0]
        log_probs = self._density.log_probs(self._actor.forward(batch.observations), batch.actions)
        log_ratio = log_probs - batch.log_probs
        ratio = np.exp(log_ratio)
        if config.target_kl is not None:
            (of_all,) = ranks.totals(_approx_kl(ratio, log_ratio, size))
            if of_all > 1.5 * config.target_kl:
                return None

        centered = batch.advantages - np.add.reduce(batch.advantages) / size
        standardized = centered / (math.sqrt(centered @ centered / (size - 1)) + 1e-8)
        advantages = standardized[batch.own]
        gains = advantages * ratio
        bounded = advantages * np.minimum(np.maximum(ratio, 1 - config.clip_coef), 1 + config.clip_coef)
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
                "approx_kl": _approx_kl(ratio, log_ratio, size),
                "clip_fraction": float((np.abs(ratio - 1) > config.clip_coef).sum() / size),
            }
        self._actor.backward(self._density.backward(by_log_probs, -config.ent_coef, size))
        self._critic.backward((errors * moved * (2.0 * config.vf_coef / size))[:, None])
        ranks.sum(self._parameters.gradient)
        self._clip_gradient()
        self._adam.step(learning_rate)
        return metrics

    def _value_errors(self, values: Array, batch: Batch) -> tuple[Array, Any]:
        """Errors of the (clipped) values, and where these depend on the critic at all."""
        limit = self._config.clip_coef_vf
        if limit is None:
            return values - batch.returns, 1.0
        change = values - batch.values
        return batch.values + change.clip(-limit, limit) - batch.returns, np.abs(change) <= limit

    def _clip_gradient(self) -> None:
        """Scale it down to the joint norm that is allowed."""
        gradient = self._parameters.gradient
        scale = self._config.max_grad_norm / (math.sqrt(gradient @ gradient) + 1e-6)
        if scale < 1.0:
            gradient *= scale

    def critic_alone(self, learning_rate: float) -> FusedCritic:
        """As :meth:`agents.ppo.TorchStep.critic_alone`."""
        return FusedCritic(self._parameters, learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`agents.ppo.TorchStep.state_dict`."""
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`agents.ppo.TorchStep.load_state_dict`."""
        self._adam.load_state_dict(state)


def density_of(head: Head, parameters: FlatParameters) -> Density:
    """The density of a head that :func:`can_fuse` approves, on its parameters."""
    if isinstance(head, GaussianHead):
        values, gradients = (parameters.views(flat) for flat in (parameters.values, parameters.gradient))
        return GaussianDensity(values["head.log_std"], gradients["head.log_std"])
    return CategoricalDensity()


def can_fuse(policy: torch.nn.Module) -> bool:
    """Whether :class:`FusedStep` can train a policy."""
    return (
        isinstance(policy, TanhActorCritic)
        and isinstance(policy.head, GaussianHead | CategoricalHead)
        and all(parameter.device.type == "cpu" for parameter in policy.parameters())
    )


def _approx_kl(ratio: Array, log_ratio: Array, size: int) -> float:
    return float(np.add.reduce(ratio - 1.0 - log_ratio) / size)


def _log_softmax(logits: Array) -> Array:
    shifted: Array = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    shifted -= np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True))
    return shifted

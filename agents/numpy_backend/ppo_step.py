"""PPO's gradient step in NumPy: actor, critic, loss, gradient clipping and Adam."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from agents.distributed import ALONE, Ranks
from agents.numpy_backend.critic import NumpyCritic
from agents.numpy_backend.distributions import distribution_of
from agents.numpy_backend.parameters import Array, NumpyAdam, ParameterVector
from agents.numpy_backend.tanh_network import TanhNetwork
from agents.policy import ActorCritic
from agents.rollout import Batch


class LossSettings(Protocol):
    """The :class:`agents.ppo.PPOConfig` hyperparameters used in a gradient step."""

    @property
    def clip_coef(self) -> float:
        """Return the clipping coefficient."""

    @property
    def clip_coef_vf(self) -> float | None:
        """Return the value clipping coefficient; None: no value clipping."""

    @property
    def ent_coef(self) -> float:
        """Return the entropy bonus coefficient."""

    @property
    def vf_coef(self) -> float:
        """Return the weight of the value loss in the total loss."""

    @property
    def max_grad_norm(self) -> float:
        """Return the maximum global norm for gradient clipping."""

    @property
    def target_kl(self) -> float | None:
        """Return the target KL divergence in nats; None: no early stopping."""


class NumpyPPOStep:
    """NumPy counterpart of :class:`agents.ppo.TorchPPOStep`: takes the same gradient steps.

    Args:
        policy: policy to train; must be supported by the NumPy backend (see
            :func:`agents.numpy_backend.supports`). Its parameters become views of one vector.
    """

    def __init__(self, policy: ActorCritic, config: LossSettings) -> None:
        self._config = config
        self._parameters = ParameterVector(dict(policy.named_parameters()))
        self._adam = NumpyAdam(self._parameters)
        self._actor = TanhNetwork(self._parameters, "actor")
        self._critic = TanhNetwork(self._parameters, "critic")
        self._distribution = distribution_of(policy.head, self._parameters)

    def __call__(
        self, batch: Batch, learning_rate: float, ranks: Ranks = ALONE, *, report: bool = True
    ) -> Mapping[str, float] | None:
        """Take one gradient step as :meth:`agents.ppo.PPOStep.__call__` says."""
        config, size = self._config, batch.size
        values = self._critic.forward(batch.observations)[:, 0]
        log_probs = self._distribution.log_probs(self._actor.forward(batch.observations), batch.actions)
        log_ratio = log_probs - batch.log_probs
        ratio = np.exp(log_ratio)
        if config.target_kl is not None:
            (approx_kl,) = ranks.totals(_approx_kl(ratio, log_ratio, size))
            if approx_kl > 1.5 * config.target_kl:
                return None

        centered = batch.advantages - np.add.reduce(batch.advantages) / size
        standardized = centered / (math.sqrt(centered @ centered / (size - 1)) + 1e-8)
        advantages = standardized[batch.own]
        gains = advantages * ratio
        bounded = advantages * np.minimum(np.maximum(ratio, 1 - config.clip_coef), 1 + config.clip_coef)
        # Where the clipped gain is smaller, the loss doesn't depend on the policy, so the gradient is 0.
        by_log_probs = gains * (gains <= bounded)
        by_log_probs /= -size
        errors, moved = self._value_errors(values, batch)
        metrics: Mapping[str, float] = {}
        if report:
            metrics = {
                "policy_loss": -float(np.add.reduce(np.minimum(gains, bounded)) / size),
                "value_loss": float(errors @ errors / size),
                "entropy": self._distribution.entropy(size),
                "approx_kl": _approx_kl(ratio, log_ratio, size),
                "clip_fraction": float((np.abs(ratio - 1) > config.clip_coef).sum() / size),
            }
        self._actor.backward(self._distribution.backward(by_log_probs, -config.ent_coef, size))
        self._critic.backward((errors * moved * (2.0 * config.vf_coef / size))[:, None])
        ranks.sum(self._parameters.gradient)
        self._clip_gradient()
        self._adam.step(learning_rate)
        return metrics

    def _value_errors(self, values: Array, batch: Batch) -> tuple[Array, Any]:
        """Return the errors ``(n,)`` of the (possibly clipped) value estimates, and a mask.

        An error is the value estimate minus the return. The mask is False where clipping makes the gradient
        0. If value clipping is off, the mask is the scalar 1.0.
        """
        limit = self._config.clip_coef_vf
        if limit is None:
            return values - batch.returns, 1.0
        change = values - batch.values
        return batch.values + change.clip(-limit, limit) - batch.returns, np.abs(change) <= limit

    def _clip_gradient(self) -> None:
        gradient = self._parameters.gradient
        scale = self._config.max_grad_norm / (math.sqrt(gradient @ gradient) + 1e-6)
        if scale < 1.0:
            gradient *= scale

    def critic_alone(self, learning_rate: float) -> NumpyCritic:
        """Return a trainer that updates only the critic, with a new Adam optimizer."""
        return NumpyCritic(self._parameters, learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's step count and moments, keyed by parameter index."""
        return self._adam.torch_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer state returned by :meth:`state_dict`."""
        self._adam.load_torch_state(state.values())


def _approx_kl(ratio: Array, log_ratio: Array, size: int) -> float:
    return float(np.add.reduce(ratio - 1.0 - log_ratio) / size)

"""Proximal policy optimization (Schulman et al. 2017), with Stable-Baselines3's semantics.

Each iteration follows the paper's algorithm 1:

1. ``collect`` advances ``num_envs`` environments by ``num_steps`` steps with the current policy
   (:mod:`agents.sampling`).
2. ``update`` estimates advantages and returns (:func:`agents.rollout.generalized_advantages`), then calls
   ``_train``.
3. ``_train``, below, trains on the rollout for ``update_epochs`` epochs in minibatches. For each minibatch,
   :class:`TorchPPOStep` takes one gradient step on the objective of eq. 9.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from agents import numpy_backend
from agents.base import load_adam, save_adam
from agents.distributed import ALONE, Ranks
from agents.on_policy import Critic, OnPolicyAgent, OnPolicyConfig, TorchCritic
from agents.policy import ActorCritic
from agents.rollout import Batch, mean_metrics, standardized


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """PPO hyperparameters in addition to :class:`~agents.on_policy.OnPolicyConfig`, named as in CleanRL.

    Attributes:
        update_epochs: number of training epochs per rollout.
        learning_rate: Adam's learning rate.
        clip_coef: clipping coefficient; the probability ratio is clipped to
            ``[1 - clip_coef, 1 + clip_coef]``.
        clip_coef_vf: value clipping coefficient; the value loss clips changes in value estimates to
            ``[-clip_coef_vf, clip_coef_vf]``. None: no value clipping.
        vf_coef: weight of the value loss in the total loss.
        max_grad_norm: maximum global norm for gradient clipping.
        target_kl: target KL divergence of the joint action distribution in nats, for early stopping. An
            update stops once a minibatch's ``approx_kl`` exceeds 1.5 times this. None: no early stopping.
        anneal_timesteps: number of environment steps over which the learning rate falls linearly to 0.
            None: constant learning rate.
    """

    update_epochs: int = 10
    learning_rate: float = 3e-4
    clip_coef: float = 0.2
    clip_coef_vf: float | None = None
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = None
    anneal_timesteps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_at_least({"minibatch_size": 2, "update_epochs": 1, "vf_coef": 0})
        self._require_positive("learning_rate", "clip_coef", "clip_coef_vf", "max_grad_norm")
        self._require_positive("target_kl", "anneal_timesteps")


class PPOStep(Protocol):
    """Interface for taking PPO gradient steps on minibatches."""

    def __call__(
        self, batch: Batch, learning_rate: float, ranks: Ranks = ALONE, *, report: bool = True
    ) -> Mapping[str, Any] | None:
        """Take one gradient step on this rank's part of a minibatch.

        Returns:
            This rank's contributions to the metrics (each metric is the sum over all ranks), or an empty dict
            if ``report`` is False. None if no step was taken because the KL divergence was already more than
            1.5 times ``target_kl``.
        """

    def critic_alone(self, learning_rate: float) -> Critic:
        """Return a critic trainer with a new optimizer; layers shared with the actor stay unchanged."""

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's step count and moments, keyed by parameter index."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer state returned by :meth:`state_dict`."""


class TorchPPOStep:
    """Takes gradient steps on PPO's loss: clipped surrogate objective, value loss and entropy bonus."""

    def __init__(self, policy: ActorCritic, config: PPOConfig) -> None:
        self._policy, self._config = policy, config
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=config.learning_rate, eps=1e-5, fused=True)

    def __call__(
        self, batch: Batch, learning_rate: float, ranks: Ranks = ALONE, *, report: bool = True
    ) -> Mapping[str, Tensor] | None:
        """Take one gradient step as :meth:`PPOStep.__call__` says."""
        config = self._config
        log_probs, entropies, values = self._policy.evaluate(batch.observations, batch.actions)
        advantages = standardized(batch.advantages)[batch.own]

        # Probability ratio r(theta) of section 3, and the negative clipped surrogate L^CLIP of eq. 7.
        log_ratio = log_probs - batch.log_probs
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).sum() / batch.size

        # Squared error L^VF, entropy bonus S, and the total loss of eq. 9.
        if config.clip_coef_vf is not None:
            change = (values - batch.values).clamp(-config.clip_coef_vf, config.clip_coef_vf)
            values = batch.values + change
        value_loss = (values - batch.returns).square().sum() / batch.size
        entropy = entropies.sum() / batch.size
        loss = policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss

        # k3 estimator of Schulman 2020, "Approximating KL Divergence".
        approx_kl = (ratio - 1 - log_ratio).detach().sum() / batch.size
        if config.target_kl is not None:
            (total_kl,) = ranks.totals(approx_kl.item())
            if total_kl > 1.5 * config.target_kl:
                return None

        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        ranks.sum_gradients(self._parameters)
        nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm)
        self._optimizer.step()
        if not report:
            return {}
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": approx_kl,
            "clip_fraction": ((ratio - 1).abs() > config.clip_coef).float().sum() / batch.size,
        }

    def critic_alone(self, learning_rate: float) -> TorchCritic:
        """Return a critic trainer with a new optimizer; layers shared with the actor stay unchanged."""
        return TorchCritic(self._policy, learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's step count and moments, keyed by parameter index."""
        return save_adam(self._optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer state returned by :meth:`state_dict`."""
        load_adam(self._optimizer, state)


class PPO(OnPolicyAgent):
    """PPO agent; takes the same arguments as :class:`~agents.on_policy.OnPolicyAgent`.

    :meth:`update` returns the means of ``policy_loss``, ``value_loss``, ``entropy``, ``approx_kl`` and
    ``clip_fraction`` over the last epoch that took a gradient step. These metrics are missing if
    ``target_kl`` was exceeded before the first gradient step.
    """

    config: PPOConfig
    shares_trunk = True

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: PPOConfig,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        allow_numpy: bool = True,
    ) -> None:
        super().__init__(envs, config, seed, device, dtype, allow_numpy=allow_numpy)
        make_step = numpy_backend.NumpyPPOStep if self.uses_numpy else TorchPPOStep
        self._step: PPOStep = make_step(self.policy, config)

    def _train(self, batch: Batch) -> dict[str, float]:
        """Train on the rollout for ``update_epochs`` epochs; stop early if ``target_kl`` is exceeded."""
        batch = self._to_backend(batch)
        learning_rate, epochs = self._learning_rate(), self.config.update_epochs
        last: list[Mapping[str, Any]] = []
        for epoch in range(1, epochs + 1):
            # Any epoch may be the last if there is a KL limit.
            report = epoch == epochs or self.config.target_kl is not None
            steps: list[Mapping[str, Any]] = []
            for minibatch in batch.minibatches(self.config.minibatch_size, self.minibatch_rng):
                metrics = self._step(minibatch, learning_rate, self.ranks, report=report)
                if metrics is None:
                    return mean_metrics(steps or last, self.ranks)
                steps.append(metrics)
            last = steps
        return mean_metrics(last, self.ranks)

    def _learning_rate(self) -> float:
        if self.config.anneal_timesteps is None:
            return self.config.learning_rate
        return self.config.learning_rate * max(0.0, 1.0 - self.total_steps / self.config.anneal_timesteps)

    def _critic_alone(self) -> Critic:
        # Not annealed, because rewards can change as much late in training as early.
        return self._step.critic_alone(self.config.learning_rate)

    @property
    def _optimized(self) -> list[Tensor]:
        return list(self.policy.parameters())

    def _optimizer_state(self) -> dict[str, Any]:
        return self._step.state_dict()

    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._step.load_state_dict(state)

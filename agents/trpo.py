"""Trust region policy optimisation (Schulman et al. 2015), with sb3-contrib's semantics."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from agents.distributed import ALONE, Ranks
from agents.on_policy import (
    Batch,
    OnPolicyAgent,
    OnPolicyConfig,
    load_adam,
    require_at_least,
    require_positive,
    save_adam,
    standardized,
)


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig):
    """Hyperparameters, named as in sb3-contrib; the first ones are those of :class:`OnPolicyConfig`.

    Attributes:
        target_kl: how far an update may move the policy: the mean divergence of the new from the old
            distribution of the joint action, in nats. sb3-contrib averages over the action's dimensions, so
            the same limit, and the same damping, are here larger by their number.
        cg_max_steps: steps of the conjugate gradient.
        cg_damping: added to the Fisher matrix, times the identity.
        line_search_shrinking_factor: by which a step that is refused gets shorter.
        line_search_max_iter: tries until the policy stays as it was.
        n_critic_updates: passes over each rollout that train the critic.
        minibatch_size: transitions per gradient step of the critic, at least.
        learning_rate: of the critic's Adam.
    """

    target_kl: float = 0.01
    cg_max_steps: int = 15
    cg_damping: float = 0.1
    line_search_shrinking_factor: float = 0.8
    line_search_max_iter: int = 10
    n_critic_updates: int = 10
    minibatch_size: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("cg_max_steps", "line_search_max_iter", "n_critic_updates", "minibatch_size")
        require_at_least(self, {"cg_damping": 0, **dict.fromkeys(counts, 1)})
        require_positive(self, "target_kl", "learning_rate", "line_search_shrinking_factor")


class TRPO(OnPolicyAgent):
    """See :class:`OnPolicyAgent`.

    :meth:`update` reports ``policy_objective`` (the surrogate, after the update), ``kl`` (of all of it),
    ``line_search_success`` (0 or 1) and ``value_loss`` (the last epoch's mean).
    """

    config: TRPOConfig
    shares_trunk = False  # Fitting shared convolutions to returns would move the policy past its limit.

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: TRPOConfig,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(envs, config, seed, device, dtype)
        self.config = config
        self._actor = [*self.policy.actor.parameters(), *self.policy.head.parameters()]
        self._critic = list(self.policy.critic.parameters())
        self._optimizer = torch.optim.Adam(self._critic, lr=config.learning_rate, eps=1e-5, fused=True)

    def _train(self, batch: Batch) -> dict[str, float]:
        return {**self._improve_policy(batch), "value_loss": self._fit_critic(batch)}

    def _improve_policy(self, batch: Batch) -> dict[str, float]:
        config = self.config
        advantages = standardized(batch.advantages)[batch.own]
        old = self.policy.head.snapshot(self.policy.actor(batch.observations))

        def objective_and_kl() -> tuple[Tensor, Tensor]:  # this rank's share of both
            outputs = self.policy.actor(batch.observations)
            log_probs, _ = self.policy.head.log_prob_and_entropy(outputs, batch.actions)
            ratio = (log_probs - batch.log_probs).exp()
            kl = self.policy.head.kl(old, outputs)
            return (advantages * ratio).sum() / batch.size, kl.sum() / batch.size

        objective, kl = objective_and_kl()
        gradient = _flat(torch.autograd.grad(objective, self._actor, retain_graph=True))
        self.ranks.sum(gradient)
        fisher = fisher_product(kl, self._actor, config.cg_damping, self.ranks)
        direction = conjugate_gradient(fisher, gradient, config.cg_max_steps)
        largest = math.sqrt(2 * config.target_kl / (direction @ fisher(direction)).item())
        (before,) = self._totals(objective)
        return self._line_search(lambda: self._totals(*objective_and_kl()), before, largest * direction)

    def _totals(self, *shares: Tensor) -> list[float]:
        """Numbers of which each rank has a share."""
        totals = np.array([share.item() for share in shares])
        self.ranks.sum(totals)
        return [float(total) for total in totals]

    @torch.no_grad()
    def _line_search(
        self, objective_and_kl: Callable[[], Sequence[float]], before: float, step: Tensor
    ) -> dict[str, float]:
        """Take the longest tried step that keeps within the limit and improves the objective, or none."""
        origin = nn.utils.parameters_to_vector(self._actor)
        for trial in range(self.config.line_search_max_iter):
            shorter = self.config.line_search_shrinking_factor**trial
            nn.utils.vector_to_parameters(origin + shorter * step, self._actor)
            objective, kl = objective_and_kl()
            if kl < self.config.target_kl and objective > before:
                return {"policy_objective": objective, "kl": kl, "line_search_success": 1.0}
        nn.utils.vector_to_parameters(origin, self._actor)
        return {"policy_objective": before, "kl": 0.0, "line_search_success": 0.0}

    def _fit_critic(self, batch: Batch) -> float:
        for _ in range(self.config.n_critic_updates):
            losses = []
            for minibatch in self._minibatches(batch, self.config.minibatch_size):
                errors = self.policy.values(minibatch.observations) - minibatch.returns
                loss = errors.square().sum() / minibatch.size
                self._optimizer.zero_grad()
                torch.autograd.backward(loss)
                self.ranks.sum_gradients(self._critic)
                self._optimizer.step()
                losses.append(loss.detach())
        (value_loss,) = self._totals(torch.stack(losses).mean())
        return value_loss

    def _optimizer_state(self) -> dict[str, Any]:
        return save_adam(self._optimizer)

    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        load_adam(self._optimizer, state)


def fisher_product(
    kl: Tensor, parameters: Sequence[Tensor], damping: float, ranks: Ranks = ALONE
) -> Callable[[Tensor], Tensor]:
    """The damped Fisher matrix as its product with vectors ``(n,)`` over all ``parameters``.

    It is the Hessian of the mean divergence where that is 0 (Schulman et al. 2015, appendix C); ``kl`` is
    this rank's share of it.
    """
    gradient = _flat(torch.autograd.grad(kl, parameters, create_graph=True))

    def product(vector: Tensor) -> Tensor:
        by_parameters = torch.autograd.grad(gradient @ vector, parameters, retain_graph=True)
        image = _flat(by_parameters)
        ranks.sum(image)
        return image + damping * vector

    return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, max_steps: int, tolerance: float = 1e-10
) -> Tensor:
    """Solve ``A x = target`` approximately for a positive definite ``A`` (Hestenes and Stiefel 1952).

    Args:
        product: of ``A`` with a vector ``(n,)``.
        target: ``(n,)``.
        max_steps: each costs one product.
        tolerance: squared norm of the residual at which it is good enough.
    """
    solution = torch.zeros_like(target)
    residual = direction = target
    squared = residual @ residual
    for _ in range(max_steps):
        if squared < tolerance:
            break
        image = product(direction)
        length = squared / (direction @ image)
        solution = solution + length * direction
        residual = residual - length * image
        before, squared = squared, residual @ residual
        direction = residual + (squared / before) * direction
    return solution


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])

"""Trust region policy optimization (Schulman et al. 2015), with sb3-contrib's semantics.

Each iteration follows sections 5 and 6 of the paper:

1. ``collect`` advances ``num_envs`` environments by ``num_steps`` steps with the current policy
   (:mod:`agents.sampling`).
2. ``update`` estimates advantages and returns (:func:`agents.rollout.generalized_advantages`), then calls
   ``_train``.
3. ``_train``, below, takes one step toward the solution of eq. 14: maximize the surrogate objective
   ``E[pi(a|s) / pi_old(a|s) A]`` subject to a mean KL divergence of at most ``target_kl``. As in appendix C,
   the step's direction solves ``F s = g`` by conjugate gradient, and a line search finds its length.
4. ``_train`` then fits the critic to the returns in minibatches.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from agents import numpy_backend
from agents.distributed import ALONE, Ranks
from agents.on_policy import Critic, OnPolicyAgent, OnPolicyConfig, TorchCritic
from agents.policy import ActorCritic
from agents.rollout import Batch, standardized

Vector = TypeVar("Vector", Tensor, NDArray[Any])


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig):
    """TRPO hyperparameters in addition to those of :class:`~agents.on_policy.OnPolicyConfig`.

    The names are those of sb3-contrib.

    Attributes:
        target_kl: maximum mean KL divergence ``KL(new || old)`` per update, in nats, between the joint action
            distributions. sb3-contrib averages over action dimensions; to get the same updates, multiply
            sb3-contrib's ``target_kl`` and ``cg_damping`` by the number of dimensions.
        cg_max_steps: maximum number of conjugate gradient steps.
        cg_damping: damping coefficient, added to the diagonal of the Fisher information matrix.
        line_search_shrinking_factor: factor by which a rejected step is multiplied before the next attempt.
        line_search_max_iter: maximum number of attempts; if all fail, the policy is left unchanged.
        n_critic_updates: number of critic epochs per rollout.
        minibatch_size: minimum number of transitions per critic minibatch.
        learning_rate: learning rate of the critic's Adam optimizer.
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
        counts = ("cg_max_steps", "line_search_max_iter", "n_critic_updates")
        self._require_at_least({"cg_damping": 0, **dict.fromkeys(counts, 1)})
        self._require_positive("target_kl", "learning_rate", "line_search_shrinking_factor")


class Surrogate(Protocol):
    """Interface for computing TRPO's surrogate objective from a flat policy parameter vector ``(n,)``.

    Vectors are tensors in :class:`TorchSurrogate` and arrays in :class:`agents.numpy_backend.NumpySurrogate`.
    """

    def linearize(self, batch: Batch, ranks: Ranks) -> tuple[float, Any, Callable[[Any], Any]]:
        """Return the current objective, its gradient, and a function that computes Fisher-vector products.

        Saves the current policy as the old policy that :meth:`move_to` compares against. ``batch`` must have
        standardized advantages.
        """

    def parameters(self) -> Any:
        """Return a copy of the actor's and action head's parameters as a vector ``(n,)``."""

    def move_to(self, parameters: Any) -> tuple[float, float]:
        """Set the parameters; return the new objective and the mean KL divergence from the old policy."""


class TorchSurrogate:
    """Computes TRPO's surrogate objective and its derivatives with torch's autograd."""

    def __init__(self, policy: ActorCritic, damping: float, ent_coef: float = 0.0) -> None:
        self._policy, self._damping, self._ent_coef = policy, damping, ent_coef
        self._parameters = [*policy.actor.parameters(), *policy.head.parameters()]

    def linearize(self, batch: Batch, ranks: Ranks) -> tuple[float, Tensor, Callable[[Tensor], Tensor]]:
        """Linearize as :meth:`Surrogate.linearize` says."""
        self._batch, self._ranks = batch, ranks
        outputs = self._policy.actor(batch.observations)
        self._old = self._policy.head.snapshot(outputs)
        objective, kl = self._objective_and_kl(outputs)
        gradient = _flat(torch.autograd.grad(objective, self._parameters, retain_graph=True))
        ranks.sum(gradient)
        (total,) = ranks.totals(objective.item())
        return total, gradient, fisher_product(kl, self._parameters, self._damping, ranks)

    def parameters(self) -> Tensor:
        """Return a copy of the actor's and action head's parameters as a vector ``(n,)``."""
        return nn.utils.parameters_to_vector(self._parameters).detach()

    @torch.no_grad()
    def move_to(self, parameters: Tensor) -> tuple[float, float]:
        """Set the parameters; return the new objective and the mean KL divergence from the old policy."""
        nn.utils.vector_to_parameters(parameters, self._parameters)
        shares = self._objective_and_kl(self._policy.actor(self._batch.observations))
        objective, kl = self._ranks.totals(*(share.item() for share in shares))
        return objective, kl

    def _objective_and_kl(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's contributions to the objective and the mean KL divergence.

        They differ from Schulman et al. (2015), eq. 14, in the entropy bonus and in the direction of the KL
        divergence, ``KL(new || old)``.
        """
        batch, head = self._batch, self._policy.head
        log_probs, entropies = head.log_prob_and_entropy(outputs, batch.actions)
        gains = batch.advantages[batch.own] * (log_probs - batch.log_probs).exp() + self._ent_coef * entropies
        return gains.sum() / batch.size, head.kl(self._old, outputs).sum() / batch.size


class TRPO(OnPolicyAgent):
    """TRPO agent; takes the same arguments as :class:`~agents.on_policy.OnPolicyAgent`.

    :meth:`update` returns ``policy_objective`` (surrogate objective with entropy bonus, after the update),
    ``kl`` (mean KL divergence of the update, in nats), ``line_search_success`` (0 or 1) and ``value_loss``
    (mean over the last critic epoch).
    """

    config: TRPOConfig
    shares_trunk = False  # training the critic on shared layers would move the policy beyond target_kl

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: TRPOConfig,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        allow_numpy: bool = True,
    ) -> None:
        super().__init__(envs, config, seed, device, dtype, allow_numpy=allow_numpy)
        make_surrogate = numpy_backend.NumpySurrogate if self.uses_numpy else TorchSurrogate
        make_critic = numpy_backend.NumpyCritic.of if self.uses_numpy else TorchCritic
        self._surrogate: Surrogate = make_surrogate(self.policy, config.cg_damping, config.ent_coef)
        self._critic: Critic = make_critic(self.policy, config.learning_rate)

    def _train(self, batch: Batch) -> dict[str, float]:
        batch = self._to_backend(batch._replace(advantages=standardized(batch.advantages)))
        return {**self._improve_policy(batch), "value_loss": self._fit_critic(batch)}

    def _improve_policy(self, batch: Batch) -> dict[str, float]:
        """Take a natural gradient step within the trust region, and return update metrics.

        Follows Schulman et al. (2015), appendix C.
        """
        objective, gradient, fisher = self._surrogate.linearize(batch, self.ranks)
        # s = F^-1 g maximizes the linearized objective for a given quadratic divergence s^T F s / 2 ...
        direction = conjugate_gradient(fisher, gradient, self.config.cg_max_steps)
        curvature = float(direction @ fisher(direction))
        if not curvature > 0:  # zero gradient: all advantages are equal, or there is only one action
            return _no_step(objective)
        # ... which is target_kl at beta s with beta = sqrt(2 target_kl / s^T F s).
        beta = math.sqrt(2 * self.config.target_kl / curvature)
        return self._line_search(objective, beta * direction)

    def _line_search(self, before: float, step: Any) -> dict[str, float]:
        """Backtrack to the largest step that improves the objective with a KL divergence below ``target_kl``.

        If no attempt succeeds, the parameters are left unchanged. ``before`` is the current objective.
        """
        origin = self._surrogate.parameters()
        for trial in range(self.config.line_search_max_iter):
            shorter = self.config.line_search_shrinking_factor**trial
            objective, kl = self._surrogate.move_to(origin + shorter * step)
            if kl < self.config.target_kl and objective > before:
                return {"policy_objective": objective, "kl": kl, "line_search_success": 1.0}
        self._surrogate.move_to(origin)
        return _no_step(before)

    def _fit_critic(self, batch: Batch) -> float:
        for _ in range(self.config.n_critic_updates):
            minibatches = batch.minibatches(self.config.minibatch_size, self.minibatch_rng)
            losses = [self._critic.step(minibatch, self.ranks) for minibatch in minibatches]
        (value_loss,) = self.ranks.totals(sum(losses) / len(losses))
        return value_loss

    def _critic_alone(self) -> Critic:
        return self._critic

    @property
    def _optimized(self) -> list[Tensor]:
        return list(self.policy.critic.parameters())

    def _optimizer_state(self) -> dict[str, Any]:
        return self._critic.state_dict()

    def _load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._critic.load_state_dict(state)


def fisher_product(
    kl: Tensor, parameters: Sequence[Tensor], damping: float, ranks: Ranks = ALONE
) -> Callable[[Tensor], Tensor]:
    """Return a function that computes damped Fisher-vector products for vectors ``(n,)``.

    The Fisher information matrix is the Hessian of the mean KL divergence at the old policy (Schulman et al.
    2015, appendix C.1).

    Args:
        kl: this rank's contribution to the mean KL divergence of the current policy from itself (0, but
            differentiable).
        parameters: tensors with ``n`` elements in total.
    """
    gradient = _flat(torch.autograd.grad(kl, parameters, create_graph=True))

    def product(vector: Tensor) -> Tensor:
        by_parameters = torch.autograd.grad(gradient @ vector, parameters, retain_graph=True)
        image = _flat(by_parameters)
        ranks.sum(image)
        return image + damping * vector

    return product


def conjugate_gradient(
    product: Callable[[Vector], Vector], target: Vector, max_steps: int, tolerance: float = 1e-10
) -> Vector:
    """Solve ``A x = target`` approximately by the conjugate gradient method, and return ``x``.

    The method is from Hestenes and Stiefel (1952). ``A`` must be symmetric positive definite.

    Each residual is orthogonalized against all earlier ones. Otherwise, if ``A`` is ill-conditioned, rounding
    errors would grow a hundredfold per step and destroy the orthogonality.

    Args:
        product: function that multiplies ``A`` by a vector ``(n,)``.
        max_steps: maximum number of steps; each calls ``product`` once.
        tolerance: stop when the squared norm of the residual is below this.
    """
    solution = 0.0 * target
    residual = direction = target
    squared = residual @ residual
    residuals: list[tuple[Vector, Any]] = []
    for _ in range(max_steps):
        if squared < tolerance:
            break
        image = product(direction)
        alpha = squared / (direction @ image)
        solution = solution + alpha * direction
        residuals.append((residual, squared))
        residual = residual - alpha * image
        for earlier, its_squared in residuals:
            residual = residual - ((earlier @ residual) / its_squared) * earlier
        before, squared = squared, residual @ residual
        direction = residual + (squared / before) * direction
    return solution


def _no_step(objective: float) -> dict[str, float]:
    return {"policy_objective": objective, "kl": 0.0, "line_search_success": 0.0}


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])

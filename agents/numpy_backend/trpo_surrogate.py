"""TRPO's surrogate objective in NumPy.

The Fisher-vector product is computed without second derivatives as ``J^T F J v`` (Martens 2014, "New insights
and perspectives on the natural gradient method"). J is the Jacobian of the actor's outputs with respect to
its parameters, and F the Fisher matrix of the action distribution with respect to these outputs. Computing
``J v`` takes a forward-mode pass, and multiplying by ``J^T`` takes a backward pass.
"""

from collections.abc import Callable

import numpy as np

from agents.distributed import Ranks
from agents.numpy_backend.distributions import distribution_of
from agents.numpy_backend.parameters import Array, ParameterVector
from agents.numpy_backend.tanh_network import TanhNetwork
from agents.policy import ActorCritic
from agents.rollout import Batch


class NumpySurrogate:
    """NumPy counterpart of :class:`agents.trpo.TorchSurrogate`: computes TRPO's surrogate objective.

    The parameters of the actor and the action head become views of one vector.

    Args:
        policy: policy to improve; must be supported by the NumPy backend (see
            :func:`agents.numpy_backend.supports`).
    """

    def __init__(self, policy: ActorCritic, damping: float, ent_coef: float = 0.0) -> None:
        tensors = policy.named_parameters()
        self._parameters = ParameterVector(
            {name: tensor for name, tensor in tensors if not name.startswith("critic.")}
        )
        self._damping, self._ent_coef = damping, ent_coef
        self._actor = TanhNetwork(self._parameters, "actor")
        self._distribution = distribution_of(policy.head, self._parameters)

    def linearize(self, batch: Batch, ranks: Ranks) -> tuple[float, Array, Callable[[Array], Array]]:
        """Linearize as :meth:`agents.trpo.Surrogate.linearize` says."""
        self._batch, self._ranks = batch, ranks
        outputs = self._actor.forward(batch.observations)
        self._old = self._distribution.snapshot(outputs)
        gains = self._gains(outputs) / batch.size
        self._actor.backward(self._distribution.backward(gains, self._ent_coef, batch.size))
        ranks.sum(self._parameters.gradient)
        (objective,) = ranks.totals(self._objective(gains))
        return objective, self._parameters.gradient.copy(), self._fisher_product

    def _fisher_product(self, vector: Array) -> Array:
        change = self._actor.jacobian_product(self._parameters.layers("actor", vector))
        self._actor.backward(
            self._distribution.fisher_product(change, self._parameters.views(vector), self._batch.size)
        )
        self._ranks.sum(self._parameters.gradient)
        return self._parameters.gradient + self._damping * vector

    def parameters(self) -> Array:
        """Return a copy of the actor's and action head's parameters as a vector ``(n,)``."""
        return self._parameters.values.copy()

    def move_to(self, parameters: Array) -> tuple[float, float]:
        """Set the parameters; return the new objective and the mean KL divergence from the old policy."""
        self._parameters.values[...] = parameters
        outputs = self._actor.forward(self._batch.observations)
        gains = self._gains(outputs) / self._batch.size
        divergence = float(np.add.reduce(self._distribution.kl(self._old, outputs))) / self._batch.size
        objective, kl = self._ranks.totals(self._objective(gains), divergence)
        return objective, kl

    def _objective(self, gains: Array) -> float:
        """Return this rank's contribution to the objective.

        The objective is the sum of all ranks' contributions. ``gains`` is the result of :meth:`_gains`
        divided by the total batch size over all ranks.
        """
        return float(np.add.reduce(gains)) + self._ent_coef * self._distribution.entropy(self._batch.size)

    def _gains(self, outputs: Array) -> Array:
        """Return this rank's importance-weighted advantages ``(n,)``: probability ratio times advantage."""
        batch = self._batch
        log_probs = self._distribution.log_probs(outputs, batch.actions)
        gains: Array = batch.advantages[batch.own] * np.exp(log_probs - batch.log_probs)
        return gains

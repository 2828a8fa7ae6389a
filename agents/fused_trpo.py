"""What an update of TRPO computes of small tanh networks, by hand in numpy.

:class:`agents.trpo.TorchSurrogate` is what this repeats. The Fisher product needs no second derivatives:
with J the derivative of the actor's outputs by its parameters and F the Fisher matrix of the distribution by
these outputs it is ``J^T F J v`` (Martens 2014, "New insights and perspectives on the natural gradient
method"): forward mode, then backward.
"""

from collections.abc import Callable

import numpy as np

from agents.batch import Batch
from agents.distributed import Ranks
from agents.flat import Array, FlatParameters
from agents.fused import density_of
from agents.policy import ActorCritic
from agents.tanh_network import TanhNetwork


class FusedSurrogate:
    """As :class:`agents.trpo.TorchSurrogate`, for a policy that :func:`agents.fused.can_fuse` approves.

    The parameters of the actor and of its distribution become views of one flat array.
    """

    def __init__(self, policy: ActorCritic, damping: float, ent_coef: float = 0.0) -> None:
        tensors = policy.named_parameters()
        self._parameters = FlatParameters(
            {name: tensor for name, tensor in tensors if not name.startswith("critic.")}
        )
        self._damping, self._ent_coef = damping, ent_coef
        self._actor = TanhNetwork(self._parameters, "actor")
        self._density = density_of(policy.head, self._parameters)

    def linearize(self, batch: Batch, ranks: Ranks) -> tuple[float, Array, Callable[[Array], Array]]:
        """As :meth:`agents.trpo.TorchSurrogate.linearize`."""
        self._batch, self._ranks = batch, ranks
        outputs = self._actor.forward(batch.observations)
        self._old = self._density.snapshot(outputs)
        gains = self._gains(outputs) / batch.size
        self._actor.backward(self._density.backward(gains, self._ent_coef, batch.size))
        ranks.sum(self._parameters.gradient)
        (objective,) = ranks.totals(self._objective(gains))
        return objective, self._parameters.gradient.copy(), self._fisher_product

    def _fisher_product(self, vector: Array) -> Array:
        change = self._actor.derivative(self._parameters.layers("actor", vector))
        self._actor.backward(
            self._density.curvature(change, self._parameters.views(vector), self._batch.size)
        )
        self._ranks.sum(self._parameters.gradient)
        return self._parameters.gradient + self._damping * vector

    def parameters(self) -> Array:
        """As :meth:`agents.trpo.TorchSurrogate.parameters`."""
        return self._parameters.values.copy()

    def at(self, parameters: Array) -> tuple[float, float]:
        """As :meth:`agents.trpo.TorchSurrogate.at`."""
        self._parameters.values[...] = parameters
        outputs = self._actor.forward(self._batch.observations)
        gains = self._gains(outputs) / self._batch.size
        divergence = float(np.add.reduce(self._density.kl(self._old, outputs))) / self._batch.size
        objective, kl = self._ranks.totals(self._objective(gains), divergence)
        return objective, kl

    def _objective(self, gains: Array) -> float:
        """This rank's share, after its :meth:`_gains`, each divided by the size of the batch."""
        return float(np.add.reduce(gains)) + self._ent_coef * self._density.entropy(self._batch.size)

    def _gains(self, outputs: Array) -> Array:
        """Advantages times the ratio of probabilities."""
        batch = self._batch
        log_probs = self._density.log_probs(outputs, batch.actions)
        gains: Array = batch.advantages[batch.own] * np.exp(log_probs - batch.log_probs)
        return gains

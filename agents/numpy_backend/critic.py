"""NumPy implementation of critic-only training."""

from collections.abc import Mapping
from typing import Any

from agents.distributed import Ranks
from agents.numpy_backend.parameters import NumpyAdam, ParameterVector
from agents.numpy_backend.tanh_network import TanhNetwork
from agents.policy import ActorCritic
from agents.rollout import Batch


class NumpyCritic:
    """NumPy counterpart of :class:`agents.on_policy.TorchCritic`: trains only the critic.

    Args:
        parameters: vector that includes the critic's parameters; all other parameters stay unchanged.
    """

    def __init__(self, parameters: ParameterVector, learning_rate: float) -> None:
        self._parameters = parameters
        self._parameters.gradient[...] = 0.0  # a new Adam leaves parameters with zero gradient unchanged
        self._critic = TanhNetwork(parameters, "critic")
        self._adam = NumpyAdam(parameters)
        self._learning_rate = learning_rate

    @classmethod
    def of(cls, policy: ActorCritic, learning_rate: float) -> "NumpyCritic":
        """Create a trainer for the critic of ``policy``.

        The critic's tensors become views of a new parameter vector.
        """
        tensors = {name: tensor for name, tensor in policy.named_parameters() if name.startswith("critic.")}
        return cls(ParameterVector(tensors), learning_rate)

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Take a gradient step as :meth:`agents.on_policy.Critic.step` says."""
        errors = self._critic.forward(batch.observations)[:, 0] - batch.returns
        self._critic.backward((errors * (2.0 / batch.size))[:, None])
        ranks.sum(self._parameters.gradient)
        self._adam.step(self._learning_rate)
        return float(errors @ errors / batch.size)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's step count and moments, keyed by parameter index."""
        return self._adam.torch_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer state returned by :meth:`state_dict`."""
        self._adam.load_torch_state(state.values())

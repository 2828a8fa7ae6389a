"""Critic refit in NumPy."""

from collections.abc import Mapping
from typing import Any

from agents.distributed import Ranks
from agents.numpy_backend.adam import Adam
from agents.numpy_backend.parameters import ParameterVector
from agents.numpy_backend.tanh_network import TanhNetwork
from agents.policy import ActorCritic
from agents.rollout import Batch


class NumpyCritic:
    """Trains the critic as :class:`agents.on_policy.TorchCritic` does.

    Args:
        parameters: the critic's, possibly among others, which stay unchanged.
        learning_rate: of Adam.
    """

    def __init__(self, parameters: ParameterVector, learning_rate: float) -> None:
        self._parameters = parameters
        self._parameters.gradient[...] = 0.0  # a new Adam does not change parameters without gradient
        self._critic = TanhNetwork(parameters, "critic")
        self._adam = Adam(parameters)
        self._learning_rate = learning_rate

    @classmethod
    def of(cls, policy: ActorCritic, learning_rate: float) -> "NumpyCritic":
        """Make one for the critic of ``policy``, whose parameters become views of one vector."""
        tensors = {name: tensor for name, tensor in policy.named_parameters() if name.startswith("critic.")}
        return cls(ParameterVector(tensors), learning_rate)

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Take one gradient step; see :meth:`agents.on_policy.Critic.step`."""
        errors = self._critic.forward(batch.observations)[:, 0] - batch.returns
        self._critic.backward((errors * (2.0 / batch.size))[:, None])
        ranks.sum(self._parameters.gradient)
        self._adam.step(self._learning_rate)
        return float(errors @ errors / batch.size)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's moments by the index of the parameter."""
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._adam.load_state_dict(state)

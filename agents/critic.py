"""Training the critic alone: in torch, and by hand in numpy where networks are small."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from agents.batch import Batch
from agents.distributed import Ranks
from agents.flat import Adam, FlatParameters
from agents.policy import ActorCritic
from agents.states import load_adam, save_adam
from agents.tanh_network import TanhNetwork


class Critic(Protocol):
    """The critic with an optimizer of its own."""

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """Train on a minibatch, of which each rank has its own part; this rank's share of the loss before."""


class TorchCritic:
    """The critic and its optimizer. What it shares with the actor stays as it is."""

    def __init__(self, policy: ActorCritic, learning_rate: float) -> None:
        self._policy = policy
        self._parameters = list(policy.critic.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=learning_rate, eps=1e-5, fused=True)

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """See :meth:`Critic.step`."""
        errors: Tensor = self._policy.values(batch.observations) - batch.returns
        loss = errors.square().sum() / batch.size
        self._optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=self._parameters)
        ranks.sum_gradients(self._parameters)
        self._optimizer.step()
        return float(loss.item())

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments by the number of the parameter, as copies."""
        return save_adam(self._optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        load_adam(self._optimizer, state)


class FusedCritic:
    """As :class:`TorchCritic`, for a policy that :func:`agents.fused.can_fuse` approves.

    Args:
        parameters: of the critic; any others among them stay as they are.
        learning_rate: of Adam.
    """

    def __init__(self, parameters: FlatParameters, learning_rate: float) -> None:
        self._parameters = parameters
        self._parameters.gradient[...] = 0.0  # Adam, which begins anew, leaves alone what has no gradient
        self._critic = TanhNetwork(parameters, "critic")
        self._adam = Adam(parameters)
        self._learning_rate = learning_rate

    @classmethod
    def of(cls, policy: ActorCritic, learning_rate: float) -> "FusedCritic":
        """The critic of ``policy``, whose parameters become views of one flat array."""
        tensors = {name: tensor for name, tensor in policy.named_parameters() if name.startswith("critic.")}
        return cls(FlatParameters(tensors), learning_rate)

    def step(self, batch: Batch, ranks: Ranks) -> float:
        """See :meth:`Critic.step`."""
        errors = self._critic.forward(batch.observations)[:, 0] - batch.returns
        self._critic.backward((errors * (2.0 / batch.size))[:, None])
        ranks.sum(self._parameters.gradient)
        self._adam.step(self._learning_rate)
        return float(errors @ errors / batch.size)

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`TorchCritic.state_dict`."""
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`TorchCritic.load_state_dict`."""
        self._adam.load_state_dict(state)

"""All members of the ensemble as one network: parameters carry a leading member dimension."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_INPUT_LIMIT = 10.0


class RewardEnsemble(nn.Module):
    """``members`` MLPs (input -> hidden -> hidden -> 1, leaky ReLU), evaluated together.

    Inputs are standardised with statistics that are part of the network, and limited to ten standard
    deviations, so that a feature that hardly varied in training cannot shout.

    Args:
        members: number of networks.
        inputs: features per step.
        hidden: units per hidden layer.
        generator: draws the initial parameters, differently for each member.
    """

    input_mean: Tensor
    input_std: Tensor

    def __init__(self, members: int, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        layers = [(inputs, hidden), (hidden, hidden), (hidden, 1)]
        # nn.Linear's default initialisation.
        self.weights = nn.ParameterList(
            _uniform((members, fan_in, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.biases = nn.ParameterList(
            _uniform((members, 1, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_std", torch.ones(inputs))

    def forward(self, features: Tensor) -> Tensor:
        """Raw reward of each step by each member.

        Args:
            features: ``(*batch, inputs)``, the same for all members.

        Returns:
            ``(members, *batch)``.
        """
        batch = features.shape[:-1]
        shared = features.reshape(1, -1, features.shape[-1]).expand(len(self.biases[0]), -1, -1)
        outputs = torch.baddbmm(self.biases[-1], self._hidden(shared), self.weights[-1])
        return outputs.reshape(-1, *batch)

    def logits(self, features: Tensor) -> Tensor:
        """Difference of the two segments' returns by each member.

        The last layer is linear, so it is applied once to the difference of sums instead of to every step,
        and its bias cancels: the same as summing :meth:`forward`, for less time.

        Args:
            features: ``(members, pairs, 2, length, inputs)``, for each member its own pairs.

        Returns:
            ``(members, pairs)``.
        """
        members, pairs, _, length, inputs = features.shape
        hidden = self._hidden(features.reshape(members, -1, inputs))
        sums = hidden.view(members, pairs, 2, length, -1).sum(dim=3)
        return torch.bmm(sums[:, :, 0] - sums[:, :, 1], self.weights[-1]).squeeze(-1)

    def _hidden(self, features: Tensor) -> Tensor:
        """``(members, n, inputs)`` to the last hidden layer's ``(members, n, hidden)``."""
        hidden = ((features - self.input_mean) / self.input_std).clamp(-_INPUT_LIMIT, _INPUT_LIMIT)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = functional.leaky_relu(torch.baddbmm(bias, hidden, weight), inplace=True)
        return hidden

    @torch.no_grad()
    def restandardise(self, mean: Tensor, std: Tensor) -> None:
        """Standardise inputs with new statistics and compute the same function as before.

        The first layer takes up the change of coordinates, so what was learned stays learned (up to the limit
        on inputs): a warm start means the same before and after.
        """
        weight, bias = self.weights[0], self.biases[0]
        bias += ((mean - self.input_mean) / self.input_std)[None, None] @ weight
        weight *= (std / self.input_std)[:, None]
        self.input_mean.copy_(mean)
        self.input_std.copy_(std)


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> nn.Parameter:
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

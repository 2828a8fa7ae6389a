"""Ensemble networks: all members as one module whose parameters have a leading member dimension."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from teacher.data.precision import SMALLEST_STD

_INPUT_LIMIT = 10.0
FARTHEST_SHIFT = 100.0  # standard deviations that biases absorb; at 10,000 they would drown what varies
_ROWS_AT_ONCE = 2**15  # keeps hidden activations small
_EVEN_STRENGTH = 10.0  # three times as many inputs correlate with few labels by chance more often
_SMALLEST_SQUARE = 1e-2  # of a feature in standard deviations; floor of its logarithm


class RewardNetwork(nn.Module, ABC):
    """Interface of an ensemble for fitting and prediction; parameters' first dimension is the member.

    Inputs are what :meth:`standardize` returns for features, so that they are standardized once for many
    uses.

    Attributes:
        LEARNING_RATE: default learning rate.
        strength: default weight decay.
    """

    LEARNING_RATE: ClassVar[float] = 3e-3
    strength = 3.0

    @abstractmethod
    def standardize(self, features: Tensor) -> Tensor:
        """Return features of any batch as network inputs."""

    @abstractmethod
    def adapt(self, features: Iterable[Tensor]) -> None:
        """Adapt to features, given in parts, before a fit; the function computed stays the same."""

    def recenter(self, moved: Tensor) -> None:
        """Keep computing the same function when ``moved`` more is subtracted from features from now on."""

    @abstractmethod
    def flatten(self) -> None:
        """Make all members give every step reward 0."""

    def learned(self) -> Sequence[Tensor]:
        """Return the tensors that fitting changes; the first dimension of each is the member."""
        return list(self.parameters())

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return each member's raw rewards of the same steps: ``(*batch, ...)`` to ``(members, *batch)``."""

    @abstractmethod
    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Return each member's difference between the two segments' returns.

        Args:
            inputs: ``(members, pairs, 2, length, ...)``, different pairs for each member.
            step_weights: weight of each step's reward in its segment's return; broadcasts to
                ``(members, pairs, 2, length)``.

        Returns:
            ``(members, pairs)``.
        """


class RewardEnsemble(RewardNetwork):
    """``members`` MLPs (input -> hidden -> hidden -> 1, leaky ReLU), evaluated together.

    Inputs are standardized with statistics stored in the network, and clipped to ten standard deviations, so
    that a feature that hardly varied in training cannot dominate. With ``even``, two more inputs per feature
    are read: the square of the standardized feature, and the logarithm of the square of the raw feature.
    Distances and control costs are nearly sums of squares, so fewer labels separate them from what correlates
    with them, and logarithms resolve small distances: the distance cost of Levine et al. (2016, "End-to-End
    Training of Deep Visuomotor Policies") consists of both.

    Args:
        members: number of networks.
        inputs: features per step.
        hidden: units per hidden layer.
        generator: draws the initial parameters, differently for each member, and the dropout masks.
        dropout: probability of dropping a hidden unit for one step in training.
        even: also read squares and logarithms.

    Attributes:
        size: number of inputs that :meth:`standardize` returns for a step.
    """

    input_mean: Tensor
    input_std: Tensor

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: int,
        generator: torch.Generator,
        dropout: float = 0.0,
        even: bool = False,
    ) -> None:
        super().__init__()
        self.size = 3 * inputs if even else inputs
        self.strength = _EVEN_STRENGTH if even else self.strength
        self.dropout = dropout
        self._even = even
        self._generator = generator
        layers = [(self.size, hidden), (hidden, hidden), (hidden, 1)]
        # nn.Linear's default initialization.
        self.weights = nn.ParameterList(
            _uniform((members, fan_in, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.biases = nn.ParameterList(
            _uniform((members, 1, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_std", torch.ones(inputs))

    def standardize(self, features: Tensor) -> Tensor:
        """Standardize features ``(*batch, inputs)`` to ``(*batch, size)``, clipped to ten."""
        standardized = (features - self.input_mean) / self.input_std
        if self._even:
            logarithms = torch.log((features / self.input_std).square() + _SMALLEST_SQUARE)
            standardized = torch.cat([standardized, standardized.square(), logarithms], dim=-1)
        return standardized.clamp_(-_INPUT_LIMIT, _INPUT_LIMIT)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the raw reward of each step by each member.

        Args:
            inputs: ``(*batch, size)``, shared by all members.

        Returns:
            ``(members, *batch)``.
        """
        rows = inputs.reshape(-1, inputs.shape[-1])
        parts = [self._outputs(some) for some in torch.split(rows, _ROWS_AT_ONCE)]
        rewards: Tensor = torch.cat(parts, dim=1) + self.biases[2][..., 0]
        return rewards.view(len(rewards), *inputs.shape[:-1])

    def _outputs(self, rows: Tensor) -> Tensor:
        """Return rewards without the last bias: ``(n, size)`` to ``(members, n)``."""
        # All members read the same rows, so their first layers are one product. The others are computed per
        # member: torch's batched products are slower, and six times slower with single columns.
        first = torch.addmm(torch.cat([*self.biases[0]], dim=1), rows, torch.cat([*self.weights[0]], dim=1))
        outputs = []
        for member, hidden in enumerate(self._activated(first).chunk(len(self.weights[0]), dim=1)):
            second = torch.addmm(self.biases[1][member], hidden, self.weights[1][member])
            outputs.append(torch.mv(self._activated(second), self.weights[2][member, :, 0]))
        return torch.stack(outputs)

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Return each member's difference between the two segments' returns.

        The last layer is linear, so it is applied once to the difference of sums instead of to every step.
        Its bias is left out: it cancels where the weights of both segments have the same sum.
        """
        members, pairs, _, length, size = inputs.shape
        hidden = self._hidden(inputs.reshape(members, -1, size))
        signed = signed_weights(step_weights, (members, pairs, 2, length))
        return torch.bmm(difference_of_sums(hidden, signed), self.weights[-1]).squeeze(-1)

    def _hidden(self, inputs: Tensor) -> Tensor:
        """Return the last hidden layer's activations: ``(members, n, size)`` to ``(members, n, hidden)``."""
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = self._activated(torch.baddbmm(bias, hidden, weight))
        return hidden

    def _activated(self, sums: Tensor) -> Tensor:
        """Return a hidden layer's activations, ``(*batch, units)``; overwrites ``sums``."""
        hidden = functional.leaky_relu(sums, inplace=True)
        if self.training and self.dropout > 0:
            heard = torch.rand(hidden.shape, generator=self._generator) >= self.dropout
            hidden = hidden * heard.to(hidden) / (1 - self.dropout)
        return hidden

    @torch.no_grad()
    def flatten(self) -> None:
        """Zero the last layer, so that every step gets reward 0; hidden layers keep their differences."""
        self.weights[-1].zero_()
        self.biases[-1].zero_()

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Standardize inputs with the statistics of these features."""
        mean, std = mean_and_std(features)
        self.restandardize(mean, torch.where(std > SMALLEST_STD, std, 1.0))

    @torch.no_grad()
    def recenter(self, moved: Tensor) -> None:
        """See :meth:`RewardNetwork.recenter`; an untrained network has no function to keep."""
        if (self.input_mean == 0).all() and (self.input_std == 1).all():
            return
        self.input_mean.copy_(self.input_mean.double() - moved)

    @torch.no_grad()
    def restandardize(self, mean: Tensor, std: Tensor) -> None:
        """Standardize inputs with new statistics while computing the same function as before.

        The first layer absorbs the change of coordinates, so a warm start keeps what was learned (up to the
        clipping of inputs and, for logarithms of features near 0, approximately). Where features are farther
        away than biases can absorb, far beyond the clipping limit, the input mean is first moved closer to
        them: the network knows nothing about such features anyway.
        """
        shift, scale = (mean - self.input_mean) / self.input_std, std / self.input_std
        nearer = mean - shift.sign() * FARTHEST_SHIFT * self.input_std
        self.input_mean.copy_(torch.where(shift.abs() > FARTHEST_SHIFT, nearer, self.input_mean))
        shift = (mean - self.input_mean) / self.input_std
        bias = self.biases[0]
        linear, *even = torch.split(self.weights[0], len(mean), dim=1)
        bias += shift[None, None] @ linear
        linear *= scale[:, None]
        if even:  # (shift + scale * z)**2 = shift**2 + 2 * shift * scale * z + scale**2 * z**2
            squares, logarithms = even
            bias += shift.square()[None, None] @ squares + 2 * scale.log()[None, None] @ logarithms
            linear += (2 * shift * scale)[:, None] * squares
            squares *= scale.square()[:, None]
        self.input_mean.copy_(mean)
        self.input_std.copy_(std)


def mean_and_std(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and std over all but the last dimension, combined over parts (Chan et al. 1979)."""
    mean, variance, seen = torch.zeros(()), torch.zeros(()), 0  # double precision from the first part on
    for part in parts:
        rows = part.flatten(0, -2)
        part_std, part_mean = torch.std_mean(rows, dim=0, correction=0)
        seen += len(rows)
        share, shift = len(rows) / seen, part_mean.double() - mean
        mean = mean + share * shift
        variance = (1 - share) * variance + share * part_std.double() ** 2 + share * (1 - share) * shift**2
    return mean.float(), variance.sqrt().float()


def signed_weights(step_weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return step weights with the second segment's negated; ``shape`` is ``(..., 2, length)``."""
    sign = step_weights.new_tensor([[1.0], [-1.0]])
    return (step_weights * sign).expand(shape).contiguous()


def difference_of_sums(hidden: Tensor, signed: Tensor) -> Tensor:
    """Return weighted sums over each pair's steps.

    Args:
        hidden: ``(members, pairs * 2 * length, units)``.
        signed: ``(members, pairs, 2, length)``, weights of the steps.

    Returns:
        ``(members, pairs, units)``.
    """
    members, pairs = signed.shape[:2]
    of_pairs = hidden.view(members * pairs, -1, hidden.shape[-1])
    return torch.bmm(signed.view(members * pairs, 1, -1), of_pairs).view(members, pairs, -1)


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> nn.Parameter:
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

"""All members of the ensemble as one network: parameters carry a leading member dimension."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from teacher.data.precision import SMALLEST_STD

_INPUT_LIMIT = 10.0
FARTHEST_SHIFT = 100.0  # deviations that biases take up; with 10,000 they outweigh what varies for good
_ROWS_AT_ONCE = 2**15  # so that what hidden layers hold of them stays small
_EVEN_STRENGTH = 10.0  # three times as many inputs go along with a few answers by chance more easily
_SMALLEST_SQUARE = 1e-2  # of a feature in deviations, below which its logarithm does not fall on


class RewardNetwork(nn.Module, ABC):
    """What fitting and predicting need of an ensemble; every parameter's first dimension goes by member.

    Inputs are what :meth:`standardize` makes of features, so that this is done once for many uses.

    Attributes:
        LEARNING_RATE: of its fits, where none is wanted in particular.
        strength: of weight decay, likewise.
    """

    LEARNING_RATE: ClassVar[float] = 3e-3
    strength = 3.0

    @abstractmethod
    def standardize(self, features: Tensor) -> Tensor:
        """Features of any batch as the network reads them."""

    @abstractmethod
    def adapt(self, features: Iterable[Tensor]) -> None:
        """Get ready to be fitted to features, given in parts, and compute the same function as before."""

    def recenter(self, moved: Tensor) -> None:
        """Compute the same function of features from which that much more is subtracted from now on."""

    @abstractmethod
    def flatten(self) -> None:
        """Give every step the same reward, 0, by all members."""

    def learned(self) -> Sequence[Tensor]:
        """What fitting changes; the first dimension of each goes by member."""
        return list(self.parameters())

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Raw reward by each member of the same steps: ``(*batch, ...)`` to ``(members, *batch)``."""

    @abstractmethod
    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Difference of the two segments' returns by each member.

        Args:
            inputs: ``(members, pairs, 2, length, ...)``, for each member its own pairs.
            step_weights: how much each step's reward counts in its segment's return; broadcasts to
                ``(members, pairs, 2, length)``.

        Returns:
            ``(members, pairs)``.
        """


class RewardEnsemble(RewardNetwork):
    """``members`` MLPs (input -> hidden -> hidden -> 1, leaky ReLU), evaluated together.

    Inputs are standardized with statistics that are part of the network, and limited to ten standard
    deviations, so that a feature that hardly varied in training cannot shout. With ``even`` they are read
    twice more, limited likewise: as the square of that, and as the logarithm of the square of the feature as
    it is. Distances and efforts are nearly sums of squares, so few answers tell them from whatever went along
    with them, and logarithms tell a small distance from a smaller one: Levine et al. (2016, "End-to-End
    Training of Deep Visuomotor Policies") make the cost of a distance of both.

    Args:
        members: number of networks.
        inputs: features per step.
        hidden: units per hidden layer.
        generator: draws the initial parameters, differently for each member, and what drops out.
        dropout: probability that a unit of a hidden layer is silent for one step while training.
        even: whether squares and logarithms are read.

    Attributes:
        size: of what :meth:`standardize` makes of the features of a step.
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
        # nn.Linear's default initialisation.
        self.weights = nn.ParameterList(
            _uniform((members, fan_in, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.biases = nn.ParameterList(
            _uniform((members, 1, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_std", torch.ones(inputs))

    def standardize(self, features: Tensor) -> Tensor:
        """``(*batch, inputs)`` to ``(*batch, size)``, all limited to ten."""
        standardized = (features - self.input_mean) / self.input_std
        if self._even:
            logarithms = torch.log((features / self.input_std).square() + _SMALLEST_SQUARE)
            standardized = torch.cat([standardized, standardized.square(), logarithms], dim=-1)
        return standardized.clamp_(-_INPUT_LIMIT, _INPUT_LIMIT)

    def forward(self, inputs: Tensor) -> Tensor:
        """Raw reward of each step by each member.

        Args:
            inputs: ``(*batch, size)``, the same for all members.

        Returns:
            ``(members, *batch)``.
        """
        rows = inputs.reshape(-1, inputs.shape[-1])
        parts = [self._outputs(some) for some in torch.split(rows, _ROWS_AT_ONCE)]
        rewards: Tensor = torch.cat(parts, dim=1) + self.biases[2][..., 0]
        return rewards.view(len(rewards), *inputs.shape[:-1])

    def _outputs(self, rows: Tensor) -> Tensor:
        """``(n, size)`` to ``(members, n)``, but for the last bias."""
        # All members read the same rows, so their first layers are one product. The others are made member by
        # member: torch's products in batches are slower, and six times slower with single columns.
        first = torch.addmm(torch.cat([*self.biases[0]], dim=1), rows, torch.cat([*self.weights[0]], dim=1))
        outputs = []
        for member, hidden in enumerate(self._activated(first).chunk(len(self.weights[0]), dim=1)):
            second = torch.addmm(self.biases[1][member], hidden, self.weights[1][member])
            outputs.append(torch.mv(self._activated(second), self.weights[2][member, :, 0]))
        return torch.stack(outputs)

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Difference of the two segments' returns by each member.

        The last layer is linear, so it is applied once to the difference of sums instead of to every step,
        and its bias is left out, which nothing could be learned about: the same as summing :meth:`forward`
        where both segments' weights have one sum.
        """
        members, pairs, _, length, size = inputs.shape
        hidden = self._hidden(inputs.reshape(members, -1, size))
        signed = signed_weights(step_weights, (members, pairs, 2, length))
        return torch.bmm(difference_of_sums(hidden, signed), self.weights[-1]).squeeze(-1)

    def _hidden(self, inputs: Tensor) -> Tensor:
        """``(members, n, size)`` to the last hidden layer's ``(members, n, hidden)``."""
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = self._activated(torch.baddbmm(bias, hidden, weight))
        return hidden

    def _activated(self, sums: Tensor) -> Tensor:
        """What a hidden layer's units say, ``(*batch, units)``; ``sums`` is overwritten."""
        hidden = functional.leaky_relu(sums, inplace=True)
        if self.training and self.dropout > 0:
            heard = torch.rand(hidden.shape, generator=self._generator) >= self.dropout
            hidden = hidden * heard.to(hidden) / (1 - self.dropout)
        return hidden

    @torch.no_grad()
    def flatten(self) -> None:
        """Give every step the same reward, 0; the hidden layers stay as different as members are."""
        self.weights[-1].zero_()
        self.biases[-1].zero_()

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Standardise inputs with the statistics of these features."""
        mean, std = mean_and_std(features)
        self.restandardize(mean, torch.where(std > SMALLEST_STD, std, 1.0))

    @torch.no_grad()
    def recenter(self, moved: Tensor) -> None:
        """See :meth:`RewardNetwork.recenter`; what is untrained has no function to keep."""
        if (self.input_mean == 0).all() and (self.input_std == 1).all():
            return
        self.input_mean.copy_(self.input_mean.double() - moved)

    @torch.no_grad()
    def restandardize(self, mean: Tensor, std: Tensor) -> None:
        """Standardise inputs with new statistics and compute the same function as before.

        The first layer takes up the change of coordinates, so what was learned stays learned (up to the limit
        on inputs, and for logarithms nearly, where a feature is nearly 0): a warm start means the same before
        and after. Where features are farther than biases can take up, far beyond the limit on inputs, the
        network is moved nearer to them first: it knows nothing of these, untrained or not.
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
    """Over all but the last dimension of all parts, put together as in Chan, Golub, LeVeque (1979)."""
    mean, variance, seen = torch.zeros(()), torch.zeros(()), 0  # in double precision from the first part on
    for part in parts:
        rows = part.flatten(0, -2)
        part_std, part_mean = torch.std_mean(rows, dim=0, correction=0)
        seen += len(rows)
        share, shift = len(rows) / seen, part_mean.double() - mean
        mean = mean + share * shift
        variance = (1 - share) * variance + share * part_std.double() ** 2 + share * (1 - share) * shift**2
    return mean.float(), variance.sqrt().float()


def signed_weights(step_weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Weights of steps with the second segment's turned negative, ``shape`` being ``(..., 2, length)``."""
    sign = step_weights.new_tensor([[1.0], [-1.0]])
    return (step_weights * sign).expand(shape).contiguous()


def difference_of_sums(hidden: Tensor, signed: Tensor) -> Tensor:
    """Sums over each pair's steps by their signed weights.

    Args:
        hidden: ``(members, pairs * 2 * length, units)``.
        signed: ``(members, pairs, 2, length)``.

    Returns:
        ``(members, pairs, units)``.
    """
    members, pairs = signed.shape[:2]
    of_pairs = hidden.view(members * pairs, -1, hidden.shape[-1])
    return torch.bmm(signed.view(members * pairs, 1, -1), of_pairs).view(members, pairs, -1)


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> nn.Parameter:
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

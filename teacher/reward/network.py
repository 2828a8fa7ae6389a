"""Reward networks: the interface of ensembles, and the default ensemble of MLPs.

An ensemble is a single module. The first dimension of each parameter indexes the ensemble members.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.numerics.moments import SMALLEST_STD, RunningMoments

_INPUT_LIMIT = 10.0  # standard deviations at which inputs are clipped
_LINEAR_INPUT_LIMIT = 3.0  # the same for linear models, whose extrapolation agents exploit more easily
FARTHEST_SHIFT = 100.0  # standard deviations that biases absorb; at 10,000, rounding hides variation
_ROWS_AT_ONCE = 2**15  # steps in a forward pass, which limits the memory of hidden activations
_EVEN_STRENGTH = 10.0  # default weight decay; higher because more inputs fit few labels by chance
_SMALLEST_SQUARE = 1e-2  # added to a squared feature, in squared standard deviations, before its logarithm


class RewardNetwork(nn.Module, ABC):
    """Interface of an ensemble of reward models, for fitting and prediction.

    The first dimension of every parameter indexes the members. The methods' ``inputs`` are features
    converted by :meth:`standardize`, which is called only once per fit.
    """

    LEARNING_RATE: ClassVar[float] = 3e-3
    strength = 3.0

    @abstractmethod
    def standardize(self, features: Tensor) -> Tensor:
        """Convert features ``(*batch, ...)`` to standardized network inputs."""

    @abstractmethod
    def adapt(self, features: Iterable[Tensor]) -> None:
        """Update the input statistics from chunks of features, without changing the outputs."""

    def recenter(self, moved: Tensor) -> None:
        """Adjust the network so that subtracting ``moved`` from the features does not change the outputs."""

    def learned(self) -> Sequence[Tensor]:
        """Return the tensors that a fit changes; the first dimension of each indexes the members."""
        return list(self.parameters())

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return each member's raw rewards ``(members, *batch)`` for inputs ``(*batch, ...)``."""

    @abstractmethod
    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Return each member's preference logit: the first segment's return minus the second segment's.

        Args:
            inputs: ``(members, pairs, 2, length, ...)``, with different pairs for each member.
            step_weights: weight of each step's reward in its segment's return; broadcasts to
                ``(members, pairs, 2, length)``.

        Returns:
            ``(members, pairs)``.
        """


class RewardEnsemble(RewardNetwork):
    """Ensemble of MLPs with two hidden layers, or of linear models, with stacked parameters.

    Hidden layers use leaky ReLU.

    Features are standardized with statistics stored in the network and clipped to ten standard deviations, or
    three in linear models, so that a feature that was nearly constant in training can't dominate the others,
    and an agent gains less from features far outside of the training data.

    If ``even`` is True, each feature adds two inputs: the square of the standardized feature, and the
    logarithm of the raw feature's square. Many distances and control costs are close to sums of squares, so
    the network needs fewer labels to learn them. Logarithms help to tell small distances apart. The distance
    cost of Levine et al. (2016, "End-to-End Training of Deep Visuomotor Policies") combines both.

    Args:
        hidden: units per hidden layer; 0 for a linear model, which starts with weights of 0.
        dropout: dropout probability of hidden units; in training, each step of a segment gets its own mask.
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
        self._limit = _INPUT_LIMIT if hidden else _LINEAR_INPUT_LIMIT
        self._generator = generator
        sizes = [self.size, hidden, hidden, 1] if hidden else [self.size, 1]
        layers = list(itertools.pairwise(sizes))
        # The same initialization as nn.Linear's default.
        self.weights = nn.ParameterList(
            _uniform((members, fan_in, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.biases = nn.ParameterList(
            _uniform((members, 1, fan_out), fan_in, generator) for fan_in, fan_out in layers
        )
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_std", torch.ones(inputs))
        if not hidden:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def standardize(self, features: Tensor) -> Tensor:
        """Standardize and clip features ``(*batch, inputs)`` to network inputs ``(*batch, size)``."""
        standardized = (features - self.input_mean) / self.input_std
        standardized.clamp_(-self._limit, self._limit)
        if self._even:
            logarithms = torch.log((features / self.input_std).square() + _SMALLEST_SQUARE)
            standardized = torch.cat([standardized, standardized.square(), logarithms], dim=-1)
        return standardized.clamp_(-_INPUT_LIMIT, _INPUT_LIMIT)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return each member's raw reward ``(members, *batch)`` for inputs ``(*batch, size)``."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        parts = [self._outputs(some) for some in split_rows(rows, _ROWS_AT_ONCE)]
        rewards: Tensor = torch.cat(parts, dim=1) + self.biases[-1][..., 0]
        return rewards.view(len(rewards), *inputs.shape[:-1])

    def _outputs(self, rows: Tensor) -> Tensor:
        """Return raw rewards ``(members, n)`` without the last layer's bias, for inputs ``(n, size)``."""
        if len(self.weights) == 1:
            linear: Tensor = (rows @ self.weights[0][..., 0].T).T
            return linear
        # All members have the same inputs, so one matrix product computes all first layers. The other layers
        # are computed member by member: torch's batched product is slower, six times for a single column.
        first = torch.addmm(torch.cat([*self.biases[0]], dim=1), rows, torch.cat([*self.weights[0]], dim=1))
        outputs = []
        for member, hidden in enumerate(self._activated(first).chunk(len(self.weights[0]), dim=1)):
            second = torch.addmm(self.biases[1][member], hidden, self.weights[1][member])
            outputs.append(torch.mv(self._activated(second), self.weights[2][member, :, 0]))
        return torch.stack(outputs)

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """Return each member's preference logit: the first segment's return minus the second segment's.

        Because the last layer is linear, it is applied once per pair, to the difference between the segments'
        weighted sums of activations, rather than to every step. The layer's bias is omitted because it
        cancels if the step weights of both segments have the same sum.
        """
        members, pairs, _, length, size = inputs.shape
        hidden = self._hidden(inputs.reshape(members, -1, size))
        signed = signed_weights(step_weights, (members, pairs, 2, length)).view(members * pairs, 1, -1)
        differences = torch.bmm(signed, hidden.view(members * pairs, 2 * length, -1)).view(members, pairs, -1)
        return torch.bmm(differences, self.weights[-1]).squeeze(-1)

    def _hidden(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = self._activated(torch.baddbmm(bias, hidden, weight))
        return hidden

    def _activated(self, sums: Tensor) -> Tensor:
        """Apply leaky ReLU to the pre-activations ``sums`` in place, followed by dropout during training."""
        hidden = functional.leaky_relu(sums, inplace=True)
        if self.training and self.dropout > 0:
            kept = torch.rand(hidden.shape, generator=self._generator) >= self.dropout
            hidden = hidden * kept.to(hidden) / (1 - self.dropout)
        return hidden

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Update the input statistics from chunks of features, without changing the outputs."""
        mean, std = mean_and_std(features)
        self.restandardize(mean, torch.where(std > SMALLEST_STD, std, 1.0))

    @torch.no_grad()
    def recenter(self, moved: Tensor) -> None:
        """Subtract ``moved`` from the input mean, to compensate for subtracting ``moved`` from the features.

        Does nothing if the statistics were never set, which is the case in an untrained network.
        """
        if (self.input_mean == 0).all() and (self.input_std == 1).all():
            return
        self.input_mean.copy_(self.input_mean.double() - moved)

    @torch.no_grad()
    def restandardize(self, mean: Tensor, std: Tensor) -> None:
        """Replace the input statistics and adjust the first layer so that the outputs stay the same.

        A warm start therefore keeps what was learned. Outputs change only for clipped inputs, and slightly
        for logarithms of features near 0. If the new mean is too far from the old one for the biases to
        absorb the shift, the old mean is first moved closer. This changes the outputs, but the network has
        learned nothing about such distant features anyway.
        """
        mean, std = mean.to(self.input_mean), std.to(self.input_std)
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


def split_rows(rows: Tensor, size: int) -> Sequence[Tensor]:
    """Split rows into chunks of at most ``size`` to limit memory.

    Return a single chunk during ``torch.export``, which can't split a batch of unknown size.
    """
    return (rows,) if torch.compiler.is_exporting() else torch.split(rows, size)


def mean_and_std(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each feature over chunks ``(..., features)``."""
    moments = RunningMoments()  # gets the features' shape from the first chunk
    for part in parts:
        rows = part.flatten(0, -2)
        std, mean = (each.double().cpu().numpy() for each in torch.std_mean(rows, 0, correction=0))
        moments.merge(len(rows), mean, std**2)
    return torch.as_tensor(moments.mean).float(), torch.as_tensor(moments.std).float()


def signed_weights(step_weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand step weights to ``shape``, ``(..., 2, length)``; negate the second segments' weights."""
    sign = step_weights.new_tensor([[1.0], [-1.0]])
    return (step_weights * sign).expand(shape).contiguous()


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> nn.Parameter:
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

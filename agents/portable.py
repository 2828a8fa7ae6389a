"""A policy as one torch module, from raw observations to executable actions, for export to other runtimes."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.base import Agent
from agents.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from agents.normalize import CLIP, EPSILON, ObservationNormalizer
from agents.pixels import channel_axis
from agents.squashed_gaussian import LOG_STD_BOUNDS, SquashedGaussianHead


class PortablePolicy(nn.Module):
    """Maps raw observations to deterministic actions and to the parameters of the action distribution.

    Includes the observation normalization and the conversion to the environment's actions, both with the
    same results as ``agent.act(observations, deterministic=True)``.

    Args:
        agent: the agent whose actor to use; its networks are switched to evaluation mode.

    Attributes:
        outputs: names of the outputs. ``action`` comes first, followed by ``logits`` for Discrete and
            MultiDiscrete actions, or by ``mean`` and ``std`` for Box actions. SAC's ``mean`` and ``std`` are
            those before squashing.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        head, normalizer = agent.policy.head, agent.normalizer
        if isinstance(normalizer, ObservationNormalizer):
            self.prepare: nn.Module = _Normalization(normalizer)
        else:
            self.prepare = _Arrangement(len(normalizer.shape), channel_axis(normalizer.shape[-3:]))
        self.actor = agent.policy.actor
        self.outputs: tuple[str, ...] = ("action", "mean", "std")
        if isinstance(head, CategoricalHead | MultiCategoricalHead):
            self.act: nn.Module = _Discrete(head)
            self.outputs = ("action", "logits")
        else:
            self.act = _Continuous(head)
        self.eval()

    def forward(self, observations: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors named by :attr:`outputs` for raw observations ``(n, *shape)``.

        Actions are ``(n, *action_shape)`` in the action space's dtype; all other outputs are
        ``(n, components)`` in single precision.
        """
        outputs: tuple[Tensor, ...] = self.act(self.actor(self.prepare(observations)))
        return outputs


class _Normalization(nn.Module):
    """The torch version of :class:`~agents.normalize.ObservationNormalizer`."""

    mean: Tensor
    variance: Tensor

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        super().__init__()
        self.scales = normalizer.scales
        self.register_buffer("mean", torch.from_numpy(normalizer.statistics.mean))
        self.register_buffer("variance", torch.from_numpy(normalizer.statistics.variance))

    def forward(self, observations: Tensor) -> Tensor:
        flat = observations.flatten(1)
        if self.scales:
            flat = ((flat.double() - self.mean) / (self.variance + EPSILON).sqrt()).clamp(-CLIP, CLIP)
        return flat.float()


class _Arrangement(nn.Module):
    """The torch version of :class:`~agents.pixels.ImagePreparation`."""

    def __init__(self, dimensions: int, channels: int) -> None:
        super().__init__()
        self._dimensions, self._axis = dimensions, channels - 3

    def forward(self, images: Tensor) -> Tensor:
        if self._dimensions == 2:
            return images.unsqueeze(1)
        images = images.movedim(self._axis, -3)
        return images.flatten(1, 2) if self._dimensions == 4 else images


class _Discrete(nn.Module):
    """Chooses the most likely actions given logits."""

    start: Tensor

    def __init__(self, head: CategoricalHead | MultiCategoricalHead) -> None:
        super().__init__()
        space = head.space
        self._sizes: list[int] = np.ravel(getattr(space, "nvec", head.num_outputs)).tolist()
        self._shape = space.shape or ()
        self.register_buffer("start", torch.as_tensor(space.start))

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        parts = [part.argmax(1) for part in torch.split(logits, self._sizes, 1)]
        return torch.stack(parts, 1).view(-1, *self._shape) + self.start, logits


class _Continuous(nn.Module):
    """Returns the mode of a Gaussian, clipped to the box; SAC's are squashed and scaled to it."""

    low: Tensor
    high: Tensor

    def __init__(self, head: GaussianHead | SquashedGaussianHead) -> None:
        super().__init__()
        self.register_buffer("low", torch.from_numpy(head.space.low))
        self.register_buffer("high", torch.from_numpy(head.space.high))
        self.log_std = None if isinstance(head, SquashedGaussianHead) else head.log_std
        self._shape: tuple[Any, ...] = head.space.shape
        self._size = math.prod(self._shape)

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        means = outputs[:, : self._size]
        actions = means.view(-1, *self._shape)
        if self.log_std is None:
            low, high = self.low.double(), self.high.double()
            actions = actions.tanh() * ((high - low) / 2) + (high + low) / 2
            stds = outputs[:, self._size :].clamp(*LOG_STD_BOUNDS).exp()
        else:
            stds = self.log_std.exp().expand(outputs.shape[0], self._size)
        clipped = torch.minimum(torch.maximum(actions, self.low), self.high)
        return clipped.to(self.low.dtype), means, stds

"""A reward predictor as one torch module, from raw steps to rewards, for export to other runtimes."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from teacher.reward.features import Features, Reader
from teacher.reward.images import Images
from teacher.reward.network import RewardNetwork
from teacher.reward.normalization import RewardNormalizer
from teacher.settings.options import INPUTS

_SOURCES = {"state": "observations", "next_state": "observations", "action": "actions"}


class PortablePredictor(nn.Module):
    """Maps raw steps to normalized rewards, averaged over the ensemble.

    Args:
        network: the predictor's ensemble; it is switched to evaluation mode.

    Attributes:
        inputs: the predictor's inputs, in the order of the arguments.
    """

    def __init__(
        self,
        read: Reader,
        network: RewardNetwork,
        normalize: RewardNormalizer,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
    ) -> None:
        super().__init__()
        self.inputs = [name for name in INPUTS if name in read.inputs]
        columns = read.columns if isinstance(read, Features) else self.inputs
        self._sources = [("state", "next_state") if name == "absorbing" else (name,) for name in columns]
        centers = read.state_dict()
        both = {"observations": observation_space, "actions": action_space}
        encoders: list[nn.Module] = []
        for name in columns:
            source = _SOURCES.get(name)
            if isinstance(read, Images):
                encoders.append(_Image(len(observation_space.shape or ()), read.channel_axis))
            elif name == "absorbing":
                encoders.append(_Unchanged())
            elif source is None:
                encoders.append(_Flag())
            else:
                encoders.append(_Vector(both[source], centers.get(source)))
        self.encoders = nn.ModuleList(encoders)
        self._axis = -3 if isinstance(read, Images) else -1
        self.network = network
        self._normalize = normalize
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return rewards ``(n,)`` for the tensors named by :attr:`inputs`, each ``(n, ...)``."""
        named = dict(zip(self.inputs, inputs, strict=True))
        encoded = [
            encode(*(named[name] for name in names))
            for encode, names in zip(self.encoders, self._sources, strict=True)
        ]
        features = self.network.standardize(torch.cat(encoded, self._axis))
        return self._normalize(self.network(features))


class _Image(nn.Module):
    """Rearranges images like :class:`~teacher.reward.images.Images`."""

    def __init__(self, dimensions: int, channel_axis: int) -> None:
        super().__init__()
        self._dimensions, self._channel_axis = dimensions, channel_axis

    def forward(self, images: Tensor) -> Tensor:
        if self._dimensions == 2:
            return images.unsqueeze(1)
        images = images.movedim(self._channel_axis, -3)
        return images.flatten(1, 2) if self._dimensions == 4 else images


class _Flag(nn.Module):
    def forward(self, flags: Tensor) -> Tensor:
        return flags.float().unsqueeze(1)


class _Unchanged(nn.Module):
    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return (before == after).reshape(len(before), -1).all(1, keepdim=True).float()


class _Vector(nn.Module):
    """Converts observations or actions to features like :class:`~teacher.reward.features.Features`."""

    center: Tensor | None
    start: Tensor

    def __init__(self, space: spaces.Space[Any], center: Any) -> None:
        super().__init__()
        self._counts: list[int] | None = None
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self._counts = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).tolist()
            self.register_buffer("start", torch.as_tensor(np.ravel(space.start)))
        self.register_buffer("center", None if center is None else torch.from_numpy(center))
        self._size = math.prod(space.shape or ())

    def forward(self, values: Tensor) -> Tensor:
        flat = values.reshape(-1, self._size)
        if self._counts is not None:
            indices = zip(torch.split(flat - self.start, 1, 1), self._counts, strict=True)
            return torch.cat([index == torch.arange(count) for index, count in indices], 1).float()
        return (flat if self.center is None else flat.double() - self.center).float()

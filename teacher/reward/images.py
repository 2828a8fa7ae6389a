"""Reward models that look at images: the convolutional network of Christiano et al. (2017), section A.2.

Images stay bytes until they are in a minibatch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from teacher.data.preferences import PreferenceDataset
from teacher.data.steps import Steps
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError
from teacher.reward.modules import ROWS_AT_ONCE, ModuleEnsemble
from teacher.settings.options import RewardConfig

CONVOLUTIONS = ((7, 3), (5, 2), (3, 1), (3, 1))
"""Width of the kernel and stride of each layer."""
FILTERS = 16
UNITS = 64
SMALLEST_SIDE = 43
"""Pixels from which :data:`CONVOLUTIONS` make one; smaller images are enlarged by a whole factor."""
PAPER_SIDE = 84
"""Pixels of a side in the paper; larger images are averaged down by a whole factor, none below this."""


def is_image_space(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether observations are images, to be looked at with a convolutional network.

    They are bytes in two dimensions (gray), three (with channels) or four (a stack of such images).
    """
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


class Images:
    """What an :class:`ImageEnsemble` reads of steps: images before or after the step, channels in front.

    Channels are on the first axis of an image where that is shorter than both others, else on the last. Those
    of the image after the step follow those of the image before it.

    Args:
        space: see :func:`is_image_space`.
        inputs: ``state``, ``next_state`` or both, joined by a comma; without it ``state``.

    Attributes:
        shape: channels (those of all images of a stack, and of both states), height and width.

    Raises:
        ConfigError: something else is to be read.
        EnvironmentUnsuitableError: the images have no pixels.
    """

    def __init__(self, space: spaces.Box, inputs: str | None = None) -> None:
        self.inputs = frozenset((inputs or "state").split(","))
        if not self.inputs <= {"state", "next_state"}:
            raise ConfigError(
                f"--reward.inputs: expected state, next_state or both where these are images; got {inputs!r}"
            )
        if 0 in space.shape:
            raise EnvironmentUnsuitableError(f"expected images with pixels, got the shape {space.shape}")
        self._space_shape = space.shape
        *_, first, second, third = (0, *space.shape)
        self._channel_axis = -3 if first < min(second, third) else -1
        channels, *sides = self._arranged(np.empty(space.shape, np.uint8)).shape
        self.shape: tuple[int, ...] = (channels * len(self.inputs), *sides)
        self.bytes_per_step = math.prod(self.shape)
        self.doubt = ""

    def __call__(self, steps: Steps) -> Tensor:
        """``(*batch, *shape)`` of uint8; see :class:`Reader`."""
        read = []
        if "state" in self.inputs:
            read.append(self._channels(steps.observations))
        if "next_state" in self.inputs:
            read.append(self._channels(steps.next_observations))
        return torch.from_numpy(np.concatenate(read, axis=-3))

    def center_on(self, dataset: PreferenceDataset) -> None:
        """Nothing: bytes are never far from 0."""

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""

    def _channels(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """``(*batch, channels, height, width)``."""
        images = np.asarray(images)
        dimensions = len(self._space_shape)
        if images.dtype != np.uint8 or images.shape[-dimensions:] != self._space_shape:
            raise DataError(
                f"expected images of shape {self._space_shape} and uint8, got {images.shape[-dimensions:]} "
                f"and {images.dtype}; use data of the environment"
            )
        return self._arranged(images)

    def _arranged(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``(*batch, *shape)``."""
        if len(self._space_shape) == 2:
            return np.expand_dims(images, -3)
        images = np.moveaxis(images, self._channel_axis, -3)
        stacked = len(self._space_shape) == 4
        if not stacked:
            return images
        return images.reshape(*images.shape[:-4], math.prod(images.shape[-4:-2]), *images.shape[-2:])


class ImageEnsemble(ModuleEnsemble):
    """``members`` convolutional networks, their parameters side by side.

    They are evaluated one after the other: as one network of grouped convolutions they would take twice the
    time on a CPU. In training each normalizes by its own minibatch.

    Args:
        shape: of an image, ``(channels, height, width)``.
        config: members, dropout and batch normalization.
        generator: draws the initial parameters, differently for each member, and what is dropped.
        full_size: do not average large images down, as the networks of earlier versions did not.

    Attributes:
        averaged: how many pixels of a side become one.
    """

    LEARNING_RATE: ClassVar[float] = 1e-3  # with three times as much, one member of three learned nothing

    def __init__(
        self,
        shape: Sequence[int],
        config: RewardConfig,
        generator: torch.Generator,
        *,
        full_size: bool = False,
    ) -> None:
        channels, *sides = shape
        self.averaged = 1 if full_size else min(max(sides) // PAPER_SIDE, min(sides) // SMALLEST_SIDE) or 1
        seen = [channels, *(-(-side // self.averaged) for side in sides)]
        super().__init__(lambda: _network(seen, config), config.members, generator, len(shape))

    def standardize(self, features: Tensor) -> Tensor:
        """Bytes ``(*batch, channels, height, width)``; large images are averaged down by a whole factor."""
        if self.averaged == 1:
            return features
        rows = features.reshape(-1, *features.shape[-3:])
        averaged = torch.cat([self._average(part) for part in torch.split(rows, ROWS_AT_ONCE)])
        return averaged.view(*features.shape[:-2], *averaged.shape[-2:])

    def _average(self, images: Tensor) -> Tensor:
        """What is left over at the edges is averaged, too."""
        numbers = images.to(torch.float32)
        means = nn.functional.avg_pool2d(numbers, self.averaged, ceil_mode=True, count_include_pad=False)
        return means.round().to(torch.uint8)

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Nothing: the values of all images lie in the same bounds."""

    @torch.no_grad()
    def flatten(self) -> None:
        """Give every image the same reward, 0."""
        for parameter in list(self.weights.values())[-2:]:  # of the last layer
            parameter.zero_()

    def numbers(self, inputs: Tensor) -> Tensor:
        """Bytes ``(n, channels, height, width)`` as numbers from 0 to 1."""
        # With the channels last in memory, a gradient step takes half the time on a CPU.
        return inputs.to(torch.float32, memory_format=torch.channels_last).div_(255)


def _network(shape: Sequence[int], config: RewardConfig) -> nn.Sequential:
    channels, *sides = shape
    scale = -(-SMALLEST_SIDE // min(sides))
    layers: list[nn.Module] = [nn.Upsample(scale_factor=scale)] if scale > 1 else []
    sides = [scale * side for side in sides]
    for kernel, stride in CONVOLUTIONS:
        layers.append(nn.Conv2d(channels, FILTERS, kernel, stride))
        if not config.no_image_batch_norm:
            layers.append(nn.BatchNorm2d(FILTERS))
        layers += [nn.LeakyReLU(0.01), nn.Dropout(config.image_dropout)]
        channels, sides = FILTERS, [(side - kernel) // stride + 1 for side in sides]
    flat = FILTERS * math.prod(sides)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(flat, UNITS), nn.LeakyReLU(0.01), nn.Linear(UNITS, 1)
    )

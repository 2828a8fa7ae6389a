"""Reward models for image observations: the convolutional network of Christiano et al. (2017), section A.2.

Images stay uint8 until they are in a minibatch.
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
"""Kernel width and stride of each layer."""
FILTERS = 16
UNITS = 64
SMALLEST_SIDE = 43
"""Side in pixels that :data:`CONVOLUTIONS` reduce to one; smaller images are upscaled by an integer."""
PAPER_SIDE = 84
"""Side length in the paper; larger images are downsampled by an integer factor, but not below this."""


def is_image_space(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Return True if observations are images, to be read by a convolutional network.

    Images are uint8 in two dimensions (gray), three (with channels) or four (a stack of images with
    channels).
    """
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


class Images:
    """Reads the images before or after each step, channels first, as :class:`ImageEnsemble` expects them.

    The channel axis is the first if that is shorter than both others, else the last. Channels of the next
    state follow those of the state.

    Args:
        space: see :func:`is_image_space`.
        inputs: ``state``, ``next_state`` or both, separated by a comma; default ``state``.

    Attributes:
        shape: channels (all images of a stack, and both states), height and width.

    Raises:
        ConfigError: ``inputs`` names something else.
        EnvironmentUnsuitableError: the images have no pixels.
    """

    def __init__(self, space: spaces.Box, inputs: str | None = None) -> None:
        self.inputs = frozenset((inputs or "state").split(","))
        if not self.inputs <= {"state", "next_state"}:
            raise ConfigError(
                f"--reward.inputs: expected state, next_state or both for image observations, got {inputs!r}"
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
        """Return the images, uint8 ``(*batch, *shape)``."""
        read = []
        if "state" in self.inputs:
            read.append(self._channels(steps.observations))
        if "next_state" in self.inputs:
            read.append(self._channels(steps.next_observations))
        return torch.from_numpy(np.concatenate(read, axis=-3))

    def center_on(self, dataset: PreferenceDataset) -> None:
        """Return None: image values need no centering."""

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return an empty dict: images have no centers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ignore the state: images have no centers."""

    def _channels(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """Return images as ``(*batch, channels, height, width)``; raise DataError for others."""
        images = np.asarray(images)
        dimensions = len(self._space_shape)
        if images.dtype != np.uint8 or images.shape[-dimensions:] != self._space_shape:
            raise DataError(
                f"expected images of shape {self._space_shape} and uint8, got {images.shape[-dimensions:]} "
                f"and {images.dtype}; use data from this environment"
            )
        return self._arranged(images)

    def _arranged(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Arrange images of the space as ``(*batch, channels, height, width)``."""
        if len(self._space_shape) == 2:
            return np.expand_dims(images, -3)
        images = np.moveaxis(images, self._channel_axis, -3)
        stacked = len(self._space_shape) == 4
        if not stacked:
            return images
        return images.reshape(*images.shape[:-4], math.prod(images.shape[-4:-2]), *images.shape[-2:])


class ImageEnsemble(ModuleEnsemble):
    """``members`` convolutional networks with stacked parameters.

    Members are evaluated one after the other; as one network of grouped convolutions they would take twice as
    long on a CPU. In training, each normalizes by its own minibatch.

    Args:
        shape: ``(channels, height, width)`` of an image.
        config: members, dropout and batch normalization.
        generator: draws the initial parameters, differently for each member, and the dropout masks.
        full_size: do not downsample large images, as in networks of earlier versions.

    Attributes:
        averaged: downsampling factor of a side.
    """

    LEARNING_RATE: ClassVar[float] = 1e-3  # at three times this, one of three members learned nothing

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
        """Downsample large uint8 images, ``(*batch, channels, height, width)``, by an integer factor."""
        if self.averaged == 1:
            return features
        rows = features.reshape(-1, *features.shape[-3:])
        averaged = torch.cat([self._average(part) for part in torch.split(rows, ROWS_AT_ONCE)])
        return averaged.view(*features.shape[:-2], *averaged.shape[-2:])

    def _average(self, images: Tensor) -> Tensor:
        """Average blocks of pixels, including partial blocks at the edges."""
        numbers = images.to(torch.float32)
        means = nn.functional.avg_pool2d(numbers, self.averaged, ceil_mode=True, count_include_pad=False)
        return means.round().to(torch.uint8)

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Do nothing: the values of all images have the same bounds."""

    @torch.no_grad()
    def flatten(self) -> None:
        """Zero the last layer, so that every image gets reward 0."""
        for parameter in list(self.weights.values())[-2:]:  # of the last layer
            parameter.zero_()

    def numbers(self, inputs: Tensor) -> Tensor:
        """Scale uint8 images ``(n, channels, height, width)`` to numbers from 0 to 1."""
        # With channels last in memory, a gradient step takes half the time on a CPU.
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

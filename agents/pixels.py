"""Policies for image observations, with the convolutional network of Mnih et al. (2015).

The networks are the same as in Stable-Baselines3. Rollouts store images as uint8, which takes a quarter of
the memory that float32 would. The network converts one minibatch at a time to floats.
"""

import math
from typing import Any, TypeGuard

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.distributed import ALONE, Ranks
from agents.errors import ShapeError, UnsupportedSpaceError
from agents.heads import action_head
from agents.numerics.moments import RunningMoments
from agents.policy import ActorCritic, ActorFunction, orthogonal

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Output channels, kernel size and stride of each layer (Mnih et al. 2015, "Model architecture")."""
NUM_FEATURES = 512
"""Number of features that the convolutional network outputs."""
SMALLEST_SIDE = 36
"""Minimum image height and width in pixels, at which :data:`CONVOLUTIONS` output a single pixel.

Smaller images are upscaled by an integer factor.
"""
IMAGES_AT_ONCE = 256
"""Maximum number of images per forward pass without gradients."""


def is_image_space(space: gymnasium.Space[Any]) -> TypeGuard[gymnasium.spaces.Box]:
    """Return True if observations are images, which need a convolutional network.

    Images are uint8 Boxes with two dimensions (grayscale), three (with channels) or four (a stack of images
    with channels).
    """
    return isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


def channel_axis(shape: tuple[int, ...]) -> int:
    """Return the channel axis (0 or 2) of an image observation whose ``shape`` has three axes.

    Channels are colors or stacked frames. The channel axis is 0 (channels-first) if the first axis is smaller
    than each of the other two; otherwise it is 2 (channels-last), which most environments use.
    """
    return 0 if shape[0] < min(shape[1:]) else 2


class ImagePreparation:
    """Converts image observations to channels-first layout, ``(channels, height, width)``.

    Implements :class:`agents.normalize.ObservationPreparation`. Pixel values stay uint8 and are not
    normalized, so ``statistics`` stays empty.
    """

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        if 0 in space.shape:
            raise UnsupportedSpaceError(
                f"Image observations can't be empty, but have shape {space.shape}; wrap the environment."
            )
        self.shape: tuple[int, ...] = space.shape
        self.statistics = RunningMoments((0,))
        self._has_channels = len(space.shape) > 2
        self._channel_axis = channel_axis(space.shape[-3:]) - 3 if self._has_channels else -3
        self.image_shape: tuple[int, ...] = self._arranged(np.empty(space.shape, np.uint8)).shape
        """Shape of a preprocessed image: channels (of all images in a stack), height, width."""

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.uint8]:
        """Rearrange images ``(*batch, *shape)`` to ``(*batch, *image_shape)``, without a copy if possible.

        Raises:
            ShapeError: the images don't have the observation space's shape or are not uint8.
        """
        dimensions = len(self.shape)
        if observations.dtype != np.uint8 or observations.shape[-dimensions:] != self.shape:
            raise ShapeError(
                f"Expected uint8 images of shape {self.shape}, got {observations.dtype} arrays of shape "
                f"{observations.shape[-dimensions:]}; use observations from the agent's environment."
            )
        return self._arranged(observations)

    def _arranged(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the images in channels-first layout.

        Grayscale images get a channel axis of size 1. For image stacks, the stack and color axes are merged
        into a single channel axis.
        """
        if not self._has_channels:
            return np.expand_dims(images, -3)
        images = np.moveaxis(images, self._channel_axis, -3)
        if len(self.shape) == 3:
            return images
        return images.reshape(*images.shape[:-4], -1, *images.shape[-2:])

    def update(self, observations: NDArray[Any], ranks: Ranks = ALONE) -> None:
        """Do nothing, because pixel values are not normalized."""


class NatureCNN(nn.Module):
    """Convolutional network that maps ``(batch, *image_shape)`` images to ``(batch, NUM_FEATURES)``."""

    def __init__(self, image_shape: tuple[int, ...], generator: torch.Generator) -> None:
        super().__init__()
        channels, *sides = image_shape
        scale = -(-SMALLEST_SIDE // min(sides))
        modules: list[nn.Module] = [nn.Upsample(scale_factor=scale)] if scale > 1 else []
        sides = [scale * side for side in sides]
        for filters, kernel, stride in CONVOLUTIONS:
            convolution = nn.Conv2d(channels, filters, kernel, stride, device="meta")
            modules += [orthogonal(convolution, math.sqrt(2), generator), nn.ReLU()]
            channels, sides = filters, [(side - kernel) // stride + 1 for side in sides]
        linear = nn.Linear(channels * math.prod(sides), NUM_FEATURES, device="meta")
        modules += [nn.Flatten(), orthogonal(linear, math.sqrt(2), generator), nn.ReLU()]
        self.layers = nn.Sequential(*modules)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features ``(batch, NUM_FEATURES)`` of uint8 images ``(batch, *image_shape)``."""
        parts = (images,) if torch.is_grad_enabled() else torch.split(images, IMAGES_AT_ONCE)
        dtype = next(self.parameters()).dtype
        # With channels last in memory, a gradient step takes three quarters of the time on a CPU.
        numbers = (part.to(dtype, memory_format=torch.channels_last) / 255.0 for part in parts)
        return torch.cat([self.layers(part) for part in numbers])


class ImageActorCritic(ActorCritic):
    """Actor-critic for images ``(batch, *image_shape)``: linear layers on top of :class:`NatureCNN`.

    If ``share_trunk``, actor and critic use the same convolutional layers, so training one changes the other.
    """

    def __init__(
        self,
        image_shape: tuple[int, ...],
        action_space: gymnasium.Space[Any],
        generator: torch.Generator,
        *,
        share_trunk: bool,
    ) -> None:
        super().__init__()
        self.head = action_head(action_space)
        self.actor = nn.Sequential(
            NatureCNN(image_shape, generator), _readout(self.head.num_outputs, 0.01, generator)
        )
        # A shared trunk is registered only in the actor, so that it's saved only once.
        own_trunk = [] if share_trunk else [NatureCNN(image_shape, generator)]
        self.critic = nn.Sequential(*own_trunk, _readout(1, 1.0, generator))
        self._share_trunk = share_trunk

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same as :meth:`ActorCritic.evaluate`; a shared trunk is evaluated only once."""
        if not self._share_trunk:
            return super().evaluate(observations, actions)
        trunk, readout = self.actor
        features = trunk(observations)
        log_probs, entropy = self.head.log_prob_and_entropy(readout(features), actions)
        return log_probs, entropy, super().values(features)

    def values(self, observations: Tensor) -> Tensor:
        """Return the critic's value estimates ``(batch,)``."""
        return super().values(self.actor[0](observations) if self._share_trunk else observations)

    def actor_function(self) -> ActorFunction:
        """Return a function that computes the actor's outputs in torch without gradients."""
        return self.acting_in_torch


def _readout(outputs: int, gain: float, generator: torch.Generator) -> nn.Module:
    return orthogonal(nn.Linear(NUM_FEATURES, outputs, device="meta"), gain, generator)

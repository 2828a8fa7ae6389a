"""Construction of the reader and the networks that fit an environment's spaces."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from teacher.reward.features import Features
from teacher.reward.images import ImageEnsemble, Images, is_image_space
from teacher.reward.modules import MakeNetwork, OwnEnsemble
from teacher.reward.network import RewardEnsemble, RewardNetwork
from teacher.reward.shaping import ShapedEnsemble
from teacher.settings.options import RewardConfig


def make_reader(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], config: RewardConfig
) -> Images | Features:
    """Return the reader that turns steps of these spaces into network inputs."""
    if is_image_space(observation_space):
        return Images(observation_space, config.inputs)
    return Features(observation_space, action_space, config.inputs)


def make_ensemble(
    read: Images | Features,
    config: RewardConfig,
    generator: torch.Generator,
    network: MakeNetwork | None,
    *,
    full_size: bool = False,
) -> RewardNetwork:
    """Return untrained networks for what ``read`` produces; see :class:`ImageEnsemble` for ``full_size``."""
    if network is not None:
        shape = read.shape if isinstance(read, Images) else (read.size,)
        return OwnEnsemble(network, shape, config.members, generator)
    if isinstance(read, Images):
        return ImageEnsemble(read.shape, config, generator, full_size=full_size)
    if config.shaping is not None:
        return ShapedEnsemble(read, config, config.shaping, generator)
    even = config.features == "even"
    return RewardEnsemble(config.members, read.size, config.hidden, generator, config.dropout, even)


def tensors_like(expected: Mapping[str, Tensor], found: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert ``found`` to tensors; raise ValueError unless names, shapes and dtypes match ``expected``."""
    if others := expected.keys() ^ found.keys():
        name = min(others)
        raise ValueError(f"{name} is {'missing' if name in expected else 'unexpected'}")
    tensors = {name: torch.as_tensor(value) for name, value in found.items()}
    for name, like in expected.items():
        got = tensors[name]
        if (got.shape, got.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"expected {name} of {tuple(like.shape)} and {like.dtype}, got {tuple(got.shape)} and "
                f"{got.dtype}"
            )
    return tensors

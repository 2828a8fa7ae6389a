"""Rejection of predictor settings that would have no effect."""

from typing import Any

from gymnasium import spaces

from teacher.reward.images import is_image_space
from teacher.settings.options import RewardConfig
from teacher.settings.unused import reject_unused


def reject_unused_of_network(
    config: RewardConfig,
    observation_space: spaces.Space[Any],
    *,
    own_network: bool = False,
    prefix: str = "reward.",
) -> None:
    """Raise :class:`ConfigError` if a non-default setting has no effect on the kind of network in use.

    Args:
        config: settings of the predictor.
        observation_space: observation space of a single environment, which determines the kind of network.
        own_network: True if the networks are custom.
        prefix: text before each setting's name in the error message.
    """
    if own_network:
        mode = "custom network"
    else:
        mode = "image observations" if is_image_space(observation_space) else "vector observations"
    reject_unused(config, mode, prefix)
